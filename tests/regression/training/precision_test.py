"""Half precision on the host: the loss curve of fp32, real overflows, a loss scale that follows them on
every layout and through restarts."""

import math
import re
import unittest

from runs import DIVERGED, GROUPED, RunTest, layout_words, run

FP16 = ["precision.compute=fp16"]
BF16 = ["precision.compute=bf16"]


class ScaleTest(RunTest):
    def scales(self, name):
        """Loss scale, skipped iterations and learning rate after every iteration."""
        return [(event["loss_scale"], event["skipped"], event["learning_rate"])
                for event in self.events(name, "train")]


class LossScale(ScaleTest):
    def test_the_printed_log_of_megatron(self):
        """Megatron-LM's log of 50 iterations with its default scaler: 15 overflow, from 2^32 down to
        262144, and hold the warm-up of 3200 iterations back by as many. Every sample is the same, so
        that every iteration has the same gradients; with this deviation of initial weights (from 4 to 6
        will do) they are just so large that 2^19 overflows in fp16 and 2^18 does not."""
        text = self.folder / "text.txt"
        text.write_text("a\n" * 8000)
        run("trireme-preprocess", "--input", text, "--output", self.folder / "same", "--tokenizer",
            "bytes", "--append-eod")
        result = self.pretrain(
            "run", *FP16, f"data.train={self.folder / 'same'}_text_document", "model.layers=2",
            "model.sequence=2", "model.init_std=5", "model.dropout={attention: 0, hidden: 0}",
            "batch={micro: 64, global: 64}", "schedule.peak=1.5e-4", "schedule.minimum=1e-5",
            "schedule.warmup=0.01", "schedule.decay=320000", "train.iterations=50", "log.every=10",
            "checkpoint.at_end=false")
        lines = [line for line in result.out.split("\n") if line.startswith(" iteration ")]
        number = r"[-+.0-9E]+"
        for line, (iteration, rate, scale, norm, skipped) in zip(lines, [
                (10, "0.000E+00", "8388608.0", "(inf|nan)", 10),
                (20, "2.344E-07", "262144.0", number, 5),
                (30, "7.031E-07", "262144.0", number, 0),
                (40, "1.172E-06", "262144.0", number, 0),
                (50, "1.641E-06", "262144.0", number, 0)], strict=True):
            self.assertRegex(
                line,
                rf"^ iteration {iteration:8d}/      50 \| consumed samples: {64 * iteration:12d} \| "
                rf"elapsed time per iteration \(ms\): {number} \| learning rate: {re.escape(rate)} \| "
                rf"global batch size:    64 \| lm loss: {number} \| loss scale: {scale} \| "
                rf"grad norm: {norm} \| number of skipped iterations: {skipped:3d} \| "
                r"number of nan iterations:   0 \|")

    def test_the_mean_loss_is_that_of_applied_iterations(self):
        """As Megatron-LM's; where none was applied it is that of all."""
        words = [*FP16, "checkpoint.at_end=false", "precision.loss_scale.window=3"]
        self.pretrain("each", *words)
        self.pretrain("means", *words, "log.every=5")
        each = self.events("each", "train")
        for number, found in enumerate(self.events("means", "train")):
            interval = each[5 * number:5 * number + 5]
            applied = [event for event in interval if not event["skipped"]] or interval
            self.assertAlmostEqual(found["loss"],
                                   sum(event["loss"] for event in applied) / len(applied), places=6)

    def test_restart_in_the_midst_of_overflows(self):
        words = [*FP16, "train.iterations=24", "precision.loss_scale.window=3"]
        self.pretrain("whole", *words)
        for _ in range(4):
            self.pretrain("parts", *words, "train.exit_interval=7")
        self.assertEqual(len(self.losses("parts")), 24)
        self.assertEqual(self.scales("parts"), self.scales("whole"))
        self.assertEqual(self.losses("parts"), self.losses("whole"))
        first, second = (self.inspect(self.latest(name)) for name in ("whole", "parts"))
        self.assertEqual(first["tensors"], second["tensors"])
        scales = [scale for scale, *_ in self.scales("whole")]
        self.assertIn(2.0, [after / before for before, after in zip(scales, scales[1:])],
                      "the scale never grew")

    def test_deepspeed_stops_at_the_minimum_scale(self):
        words = [*FP16, "precision.loss_scale.dialect=deepspeed", "precision.loss_scale.initial=4294967296",
                 "precision.loss_scale.minimum=1073741824"]
        for ranks in (1, 2):
            with self.subTest(f"{ranks} ranks"):
                result = self.pretrain(f"{ranks}", *words, f"parallel.data={ranks}", ranks=ranks,
                                       code=DIVERGED)
                message = "Current loss scale already at minimum - cannot decrease scale anymore. Exiting run."
                self.assertEqual(result.err.count(message), 1, result)
                # The first takes from the hysteresis, two halve the scale, the fourth is too much.
                self.assertEqual([scale for scale, *_ in self.scales(f"{ranks}")],
                                 [4294967296, 2147483648, 1073741824, 1073741824])
                stop = self.stop_event(f"{ranks}")
                self.assertEqual((stop["iteration"], stop["exit_code"]), (4, DIVERGED))

    def test_a_constant_scale_of_fp32_changes_nothing(self):
        self.pretrain("plain")
        self.pretrain("scaled", "precision.loss_scale.value=1024")
        self.assertEqual(self.losses("scaled"), self.losses("plain"))
        self.assertEqual({scale for scale, *_ in self.scales("scaled")}, {1024})


class LossScaleOnLayouts(ScaleTest):
    def test_every_layout_skips_the_same(self):
        """An overflow on one rank is one on all, with a sharded optimizer as well."""
        words = [*FP16, "checkpoint.at_end=false", "precision.loss_scale.window=3"]
        self.pretrain("serial", *words)
        reference = self.scales("serial")
        self.assertGreater(sum(skipped for _, skipped, _ in reference), 8)
        for layout, *more in [((2, 1, 1),), ((2, 1, 1), "parallel.sequence=true"), ((1, 2, 1),),
                              ((1, 2, 1), "parallel.schedule=zero-bubble"), ((1, 1, 2),),
                              ((2, 2, 1),)]:
            with self.subTest(layout, more=more):
                name = "-".join([*map(str, layout), *more])
                self.pretrain(name, *layout_words(*layout), *words, *more, ranks=math.prod(layout))
                self.assertEqual(self.scales(name), reference)
                self.assert_close(self.losses(name), self.losses("serial"), 1e-4, name)


class GroupedLossScaleOnLayouts(LossScaleOnLayouts):
    MODEL = [*GROUPED, "train.iterations=20"]


class HalfTypes(RunTest):
    def test_learn_as_fp32_does(self):
        self.pretrain("fp32")
        losses = self.losses("fp32")
        self.assert_learns(losses)
        # From a scale at which nothing overflows, so that all take the same steps.
        for name, words in [("fp16", [*FP16, "precision.loss_scale.initial=1024"]), ("bf16", BF16)]:
            result = self.pretrain(name, *words)
            self.assertIn(f"host backend, {name}", result.out)
            self.assertEqual({(event["loss_scale"], event["skipped"])
                              for event in self.events(name, "train")},
                             {(1024 if name == "fp16" else 1, 0)})
            self.assert_close(self.losses(name), losses, 1e-2, name)

    def test_a_checkpoint_resumes_in_another_type(self):
        self.pretrain("run", "train.iterations=20", "train.exit_interval=10")
        result = self.pretrain("run", *BF16, "train.iterations=20")
        self.assertIn("changed: precision.compute: fp32 in the checkpoint, bf16 now", result.out)
        self.pretrain("fp32")
        self.assert_close(self.losses("run"), self.losses("fp32"), 1e-2, "fp32, then bf16")


class Fp8(RunTest):
    WORDS = [*BF16, "precision.gemm=fp8", "checkpoint.at_end=false"]

    def test_learns_as_bf16_does_on_every_layout(self):
        self.pretrain("bf16", *BF16, "checkpoint.at_end=false")
        self.pretrain("fp8", *self.WORDS)
        losses = self.losses("fp8")
        self.assertNotEqual(losses, self.losses("bf16"))
        self.assert_close(losses, self.losses("bf16"), 2e-2, "fp8")
        self.pretrain("mixed", *self.WORDS, "precision.fp8={first_layers: 1, backward: e4m3}")
        self.assertNotEqual(self.losses("mixed"), losses)
        self.assert_close(self.losses("mixed"), self.losses("bf16"), 2e-2, "mixed")
        blocks = "precision.fp8={recipe: block}"
        self.pretrain("block", *self.WORDS, blocks)
        self.assertNotEqual(self.losses("block"), losses)
        self.assert_close(self.losses("block"), self.losses("bf16"), 2e-2, "block")
        self.pretrain("block-1-2-1", *layout_words(1, 2, 1), *self.WORDS, blocks, ranks=2)
        self.assert_close(self.losses("block-1-2-1"), self.losses("block"), 1e-2, "block, 2 stages")
        for layout, *more in [((2, 1, 1), "parallel.sequence=true"), ((1, 2, 1),),
                              ((1, 1, 2), "parallel.zero=3")]:
            name = "-".join([*map(str, layout), *more])
            self.pretrain(name, *layout_words(*layout), *self.WORDS, *more, ranks=math.prod(layout))
            self.assert_close(self.losses(name), losses, 1e-2, name)

    def test_a_restart_changes_no_bit(self):
        words = [*BF16, "precision.gemm=fp8", "train.iterations=8"]
        self.pretrain("whole", *words)
        for _ in range(2):
            self.pretrain("halves", *words, "train.exit_interval=4")
        self.assertEqual(self.losses("halves"), self.losses("whole"))
        first, second = (self.inspect(self.latest(name)) for name in ("whole", "halves"))
        self.assertEqual(first["tensors"], second["tensors"])
        result = self.pretrain("whole", *BF16, "train.iterations=9")
        self.assertIn("changed: precision.gemm: fp8 in the checkpoint, same now", result.out)


if __name__ == "__main__":
    unittest.main(verbosity=2)
