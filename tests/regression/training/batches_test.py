"""Batches over a run: their ramp-up, the data that train.skip leaves out, and what is counted in
samples."""

import json
import math
import unittest

from runs import GROUPED, RunTest, layout_words

PEAK = 3e-3


def sizes_of(start, step, ramp, batch, samples):
    """The batches of a run with a ramp-up, as Megatron-LM's calculator sizes them."""
    part = ramp / ((batch - start) // step)
    taken, sizes = 0, []
    while True:
        size = batch if taken > ramp else start + int(taken / part) * step
        if taken + size > samples:
            return sizes
        sizes.append(size)
        taken += size


def by_samples(samples):
    """Trains by samples where the deck counts iterations."""
    return ["train.iterations=", f"train.samples={samples}", "schedule.warmup=20 samples",
            "schedule.decay=400 samples"]


# Batches of 2, 4, 6 and 8 samples, grown every 20 samples.
RAMP = [*by_samples(140), "batch.rampup={start: 2, step: 2, samples: 60}"]
RAMP_SIZES = sizes_of(2, 2, 60, 8, 140)


class RampUp(RunTest):
    def test_sizes_counts_and_learning_rates(self):
        self.pretrain("run", *RAMP)
        train = self.events("run", "train")
        self.assertEqual(sorted(set(RAMP_SIZES)), [2, 4, 6, 8])
        self.assertEqual([event["global_batch"] for event in train], RAMP_SIZES)
        taken = 0
        for event in train:
            taken += event["global_batch"]
            self.assertEqual(event["consumed_samples"], taken)
            if taken <= 20:
                self.assertAlmostEqual(event["learning_rate"], PEAK * taken / 20)
        self.assertEqual(self.stop_event("run")["iteration"], len(RAMP_SIZES))
        self.assert_learns(self.losses("run"))

    def test_the_recipe_of_bigscience(self):
        result = self.pretrain("run", *by_samples(10_000), "batch.global=16",
                               "batch.rampup={start: 2, step: 2, samples: 1000}",
                               "train.exit_interval=100 iterations", "model.layers=1",
                               "log.every=50")
        self.assertIn("748 iterations of 512 tokens", result.out)
        self.assertIn("in the first 187 iterations: 1016 samples", result.out)
        self.assertRegex(result.out, r" iteration      100/     748 \| consumed samples:          "
                                     r"256 \|.*\| global batch size:     4 \|")
        self.assertEqual(self.stop_event("run")["reason"], "train.exit_interval is reached")

    def check_restart(self, *words, ranks):
        self.pretrain("whole", *RAMP, *words, ranks=ranks)
        interval = "train.exit_interval=7 iterations"
        while not self.events("parts", "stop") or self.stop_event("parts")["reason"] != "finished":
            self.pretrain("parts", *RAMP, *words, interval, ranks=ranks)
        self.assertEqual(len(self.events("parts", "start")), math.ceil(len(RAMP_SIZES) / 7))
        self.assertEqual(self.losses("parts"), self.losses("whole"))
        tensors = [self.inspect(self.latest(name))["tensors"] for name in ("whole", "parts")]
        self.assertEqual(tensors[0], tensors[1])

    def test_restart_in_the_ramp(self):
        self.check_restart(ranks=1)

    def test_restart_in_the_ramp_on_four_ranks(self):
        self.check_restart("parallel.pipeline=2", "parallel.data=2", ranks=4)


class RampUpOnLayouts(RunTest):
    def test_layouts(self):
        self.pretrain("serial", *RAMP, "checkpoint.at_end=false")
        reference = self.losses("serial")
        # A first batch of 2 is one micro-batch for each of two copies, fewer than there are stages.
        for name, layout, words in [
            ("tensor-and-data", (2, 1, 2), []),
            ("four-stages", (1, 4, 1), []),
            ("zero-bubble", (1, 2, 2), ["parallel.schedule=zero-bubble"]),
            ("interleaved", (1, 2, 1), ["parallel.schedule=interleaved", "parallel.interleave=2"]),
        ]:
            with self.subTest(name):
                self.pretrain(name, *RAMP, *layout_words(*layout), *words,
                              "checkpoint.at_end=false", ranks=math.prod(layout))
                self.assert_close(self.losses(name), reference, 2e-6, name)


class GroupedRampUpOnLayouts(RampUpOnLayouts):
    MODEL = [*GROUPED, "schedule.peak=3e-3"]


class CountedInSamples(RunTest):
    def test_intervals_are_reached_where_the_samples_pass_them(self):
        self.pretrain("run", *RAMP, "evaluate.every=40 samples", "checkpoint.every=30",
                      "checkpoint.keep=1", "checkpoint.keep_every=60 samples",
                      "checkpoint.at_end=false")
        passed, taken = {30: [], 40: [], 60: []}, 0
        for iteration, size in enumerate(RAMP_SIZES, 1):
            for every, iterations in passed.items():
                if (taken + size) // every > taken // every:
                    iterations.append(iteration)
            taken += size
        evaluations = [event["iteration"] for event in self.events("run", "eval")]
        self.assertEqual(evaluations, passed[40])
        saves = [event["iteration"] for event in self.events("run", "checkpoint")]
        self.assertEqual(saves, passed[30])
        self.assertEqual(len(saves), 4)
        self.assertEqual(self.checkpoints("run"), [f"step-{step:08}.h5" for step in passed[60]])

    def test_milestones_stay_where_the_batch_changes(self):
        words = [*by_samples(200), "checkpoint.every=20 samples", "checkpoint.keep=1", "checkpoint.keep_every=40 samples"]
        self.pretrain("run", *words, "train.exit_interval=64 samples")
        self.pretrain("run", *words, "batch.global=12")
        # In batches of 8 up to sample 64, then of 12: the iterations that pass multiples, and the newest one.
        milestones = [5, *(8 + math.ceil((samples - 64) / 12) for samples in (80, 120, 160))]
        self.assertEqual(self.checkpoints("run")[:-1], [f"step-{step:08}.h5" for step in milestones])

    def test_evaluations_are_the_same_with_and_without_a_ramp(self):
        frozen = ["schedule.peak=1e-30", "evaluate.every=40 samples", "evaluate.at_end=true"]
        self.pretrain("ramp", *RAMP, *frozen)
        self.pretrain("flat", *by_samples(140), *frozen)
        losses = [[event["loss"] for event in self.events(name, "eval")]
                  for name in ("ramp", "flat")]
        self.assertEqual(len(losses[0]), 4)
        self.assertEqual(len(set(losses[0])), 4)
        self.assertEqual(losses[0], losses[1])


class Skip(RunTest):
    # Weights that do not change show by the loss which data an iteration took.
    FROZEN = ["schedule.peak=1e-30", "model.dropout.hidden=0", "model.dropout.attention=0"]

    def setUp(self):
        super().setUp()
        self.pretrain("data", "train.iterations=14", *self.FROZEN)
        self.data = self.losses("data")
        self.assertEqual(len(set(self.data)), 14)

    def took(self, *batches):
        return [self.data[batch - 1] for batch in batches]

    def test_iterations_take_the_data_that_follows(self):
        result = self.pretrain("run", "train.iterations=9", "train.skip=[4-6, 2-2, 5-7]",
                               *self.FROZEN)
        self.assertEqual(self.losses("run"), self.took(1, 3, 4, 9, 10, 11, 12, 13, 14))
        self.assertIn("\n skipped the data of iterations 2 to 2 (8 samples) due to train.skip\n",
                      result.out)
        self.assertIn("\n skipped the data of iterations 4 to 7 (32 samples) due to train.skip\n",
                      result.out)
        self.assertEqual([event["iteration"] for event in self.events("run", "skip")], [2, 4])
        self.assertEqual(self.events("run", "train")[-1]["consumed_samples"], 72)

    def test_restart_inside_a_range(self):
        words = ["train.iterations=8", "train.skip=2-4"]
        self.pretrain("whole", *words, ranks=2)
        for _ in range(3):
            self.pretrain("parts", *words, "train.exit_interval=3", ranks=2)
        self.assertEqual(self.stop_event("parts")["reason"], "finished")
        self.assertEqual(self.losses("parts"), self.losses("whole"))
        self.assertEqual(len(self.events("parts", "skip")), 1)

    def test_a_range_added_after_a_bad_stretch(self):
        self.pretrain("run", "train.iterations=5", *self.FROZEN)
        result = self.pretrain("run", "train.iterations=9", "train.skip=4-8", *self.FROZEN)
        self.assertIn("changed: train.skip: not set in the checkpoint, 4-8 now", result.out)
        self.assertIn("skipped the data of iterations 6 to 8 (24 samples)", result.out)
        self.assertEqual(self.losses("run"), self.took(1, 2, 3, 4, 5, 9, 10, 11, 12))


class OrderOfActions(RunTest):
    def test_log_evaluate_save_stop(self):
        result = self.pretrain("run", "train.exit_interval=4", "evaluate.every=4",
                               "checkpoint.every=4", "train.exit_duration=10 hours")
        lines = [line for line in result.out.splitlines() if line.strip(" -")]
        tail = [line.split("|")[0].strip()[:24] for line in lines]
        first = next(i for i, line in enumerate(tail) if line.startswith("iteration        4/"))
        self.assertEqual(tail[first + 1], "validation loss at itera")
        self.assertEqual(tail[first + 2], "successfully saved check")
        self.assertEqual(tail[first + 3], "stopped after iteration ")
        self.assertEqual(self.checkpoints("run"), ["step-00000004.h5"])
        self.assertEqual(len(self.events("run", "checkpoint")), 1)

    def test_validation_and_test_at_the_end(self):
        self.pretrain("run", "train.iterations=4", "data.split=80,10,10", "evaluate.every=3",
                      "evaluate.at_end=true")
        found = [(event["iteration"], event["split"]) for event in self.events("run", "eval")]
        self.assertEqual(found, [(3, "valid"), (4, "valid"), (4, "test")])

    def test_a_last_evaluation_that_was_killed_is_made_up_for(self):
        # The last batch, of 6 samples, goes from the 8th to the 14th.
        ramp = ["train.iterations=", "train.samples=14",
                "batch.rampup={start: 2, step: 2, samples: 12}"]
        for every, expected, *more in [("3", ["valid", "test"]), ("4", ["test"]),
                                       ("8 samples", ["valid", "test"], *ramp)]:
            name = f"every{every[0]}"
            words = ["train.iterations=4", "data.split=80,10,10", f"evaluate.every={every}",
                     "evaluate.at_end=true", *more]
            self.pretrain(name, *words)
            metrics = self.folder / name / "metrics.jsonl"
            lines = metrics.read_text().splitlines(keepends=True)
            saved = max(i for i, line in enumerate(lines) if '"checkpoint"' in line)
            metrics.write_text("".join(lines[:saved + 1]))
            before = self.events(name, "eval")
            self.pretrain(name, *words)
            self.pretrain(name, *words)  # has nothing left to do
            made_up = self.events(name, "eval")[len(before):]
            self.assertEqual([event["split"] for event in made_up], expected, every)
            self.assertEqual(made_up[-1]["loss"], json.loads(
                next(line for line in lines if '"test"' in line))["loss"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
