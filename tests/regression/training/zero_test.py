"""ZeRO cuts memory, not mathematics: every stage gives the serial curve, alone and with every other
axis, through restarts on other stages and in half precision."""

import math
import unittest

from runs import GROUPED, RunTest, layout_words, run

TOLERANCE = 2e-6
INTERLEAVED = ["parallel.schedule=interleaved", "parallel.interleave=2"]
ZERO_BUBBLE = ["parallel.schedule=zero-bubble"]
NO_OVERLAP = ["parallel.overlap.gradients=false", "parallel.overlap.parameters=false"]


def zero(stage):
    return f"parallel.zero={stage}"


class Layouts(RunTest):
    def test_every_stage_gives_the_serial_curve(self):
        self.pretrain("serial", "checkpoint.at_end=false")
        reference = self.losses("serial")
        self.assert_learns(reference)
        for layout, *words in [[(1, 1, 1)], [(1, 1, 2)], [(1, 1, 4), "parallel.bucket=1000"],
                               [(2, 1, 2), "parallel.sequence=true"], [(1, 2, 2)],
                               [(1, 2, 2), *INTERLEAVED], [(1, 2, 2), *ZERO_BUBBLE],
                               [(1, 2, 2), "parallel.partition=0-4", *NO_OVERLAP],
                               [(1, 2, 2), "recompute.granularity=full", "recompute.layers=2"]]:
            for stage in (2, 3):
                self.check_layout(reference, TOLERANCE, layout, zero(stage), *words)

    def test_bits(self):
        """Stages 2 and 3 are the same; with one micro-batch a step and rank they are stage 1."""
        for name, layout, *words in [("one", (1, 1, 4), "batch.global=4"), ("many", (1, 1, 2)),
                                     ("pipeline", (1, 2, 2), *ZERO_BUBBLE)]:
            for stage in (1, 2, 3):
                self.pretrain(f"{name}-{stage}", *layout_words(*layout), zero(stage), *words,
                              ranks=math.prod(layout))
            tensors = [self.inspect(self.latest(f"{name}-{stage}"))["tensors"]
                       for stage in (1, 2, 3)]
            self.assertEqual(self.losses(f"{name}-3"), self.losses(f"{name}-2"), name)
            self.assertEqual(tensors[2], tensors[1], name)
            if name == "one":
                self.assertEqual(self.losses("one-2"), self.losses("one-1"))
                self.assertEqual(tensors[1], tensors[0])

    def test_the_plan_and_the_run_agree_on_less_memory(self):
        planned = []
        for stage in (0, 1, 2, 3):
            name = f"stage-{stage}"
            result = self.pretrain(name, *layout_words(1, 1, 2), zero(stage), "train.iterations=2",
                                   "model.layers=8", "checkpoint.at_end=false", ranks=2)
            self.assertIn("memory per rank", result.out)
            planned.append(self.events(name, "memory")[0]["planned_bytes"])
        self.assertEqual(planned, sorted(planned, reverse=True))
        self.assertEqual(len(set(planned)), 4, planned)


class Restart(RunTest):
    def check_same_bits(self, ranks, *words):
        words = [*words, "train.iterations=12"]
        self.pretrain("whole", *words, ranks=ranks)
        for _ in range(2):
            last = self.pretrain("halves", *words, "train.exit_interval=6", ranks=ranks)
        self.assertIn("step-00000006.h5, iteration 6", last.out)
        self.assertEqual(self.losses("halves"), self.losses("whole"))
        tensors = [self.inspect(self.latest(name))["tensors"] for name in ("whole", "halves")]
        self.assertEqual(*tensors)

    def test_same_bits_under_stage_three(self):
        self.check_same_bits(4, *layout_words(2, 1, 2), zero(3))

    def test_same_bits_in_half_precision_with_half_gradients(self):
        self.check_same_bits(4, *layout_words(1, 2, 2), zero(3), "precision.compute=fp16",
                             "precision.gradients=same", "precision.loss_scale.window=3")

    def test_chain_of_stages(self):
        self.pretrain("serial", "checkpoint.at_end=false")
        legs = [(4, layout_words(1, 1, 4), 3), (2, layout_words(1, 1, 2), 0),
                (4, layout_words(2, 1, 2), 2), (4, layout_words(1, 2, 2), 1),
                (4, layout_words(1, 2, 2), 3)]
        for ranks, words, stage in legs:
            result = self.pretrain("chain", "train.exit_interval=4", *words, zero(stage),
                                   ranks=ranks)
        self.assertIn("changed: parallel.zero: 1 in the checkpoint, 3 now", result.out)
        self.assert_close(self.losses("chain"), self.losses("serial"), TOLERANCE, "five stages")

    def test_what_was_trained_in_parts_is_evaluated_whole(self):
        self.pretrain("run", *layout_words(1, 2, 2), zero(3), "evaluate.at_end=true", ranks=4)
        self.pretrain("plain", "evaluate.at_end=true")
        ours, plain = [self.events(name, "eval")[-1]["loss"] for name in ("run", "plain")]
        self.assertAlmostEqual(ours, plain, delta=TOLERANCE * plain)
        whole = self.evaluate("plain")["loss"]
        for ranks, words in [(1, []), (2, layout_words(1, 1, 2)), (4, layout_words(1, 2, 2))]:
            scored = self.evaluate("run", zero(3), *words, ranks=ranks)["loss"]
            self.assertAlmostEqual(scored, whole, delta=TOLERANCE * whole)
        written = run("trireme-generate", "--checkpoint", self.latest("run"), "--prompt", "The",
                      "--tokens", "8", "--greedy")
        self.assertEqual(written.code, 0, written)


class GroupedLayouts(Layouts):
    MODEL = GROUPED


class GroupedRestart(Restart):
    MODEL = [*GROUPED, "train.iterations=20"]


class Precision(RunTest):
    def test_half_types_under_every_stage(self):
        for compute in ("bf16", "fp16"):
            # A constant scale: a growing one meets its overflows at other iterations.
            words = [f"precision.compute={compute}", "precision.loss_scale.value=1024"]
            self.pretrain(f"{compute}", *words, "checkpoint.at_end=false")
            reference = self.losses(compute)
            for gradients in ("fp32", "same"):
                for layout, stage in [((1, 1, 2), 0), ((1, 1, 4), 1), ((1, 2, 2), 2), ((2, 1, 2), 3),
                                      ((1, 1, 4), 3)]:
                    self.check_layout(reference, 1e-2, layout, *words, zero(stage),
                                      f"precision.gradients={gradients}")

    def test_gradients_of_half_the_bytes(self):
        """Two bytes saved for each element of the layers' matrices, on one rank or on two."""
        matrices = 4 * 12 * 32 * 32
        for layout in [(1, 1, 1), (2, 1, 1)]:
            planned = {}
            for gradients in ("fp32", "same"):
                name = f"{gradients}-{layout[0]}"
                self.pretrain(name, *layout_words(*layout), "precision.compute=bf16",
                              f"precision.gradients={gradients}", "train.iterations=1",
                              "checkpoint.at_end=false", "parallel.bucket=64",
                              ranks=math.prod(layout))
                planned[gradients] = self.events(name, "memory")[0]["planned_bytes"]
            saved = planned["fp32"] - planned["same"]
            # Less what one bucket is widened to.
            self.assertAlmostEqual(saved, 2 * matrices / layout[0], delta=4 * 64 + 256)


if __name__ == "__main__":
    unittest.main(verbosity=2)
