"""Every update rule and schedule in whole runs: layouts, restarts, checkpoints."""

import shutil
import unittest

from runs import DECK, GROUPED, RunTest

RULES = {
    "adam": ["optimizer.type=adam"],
    "sgd": ["optimizer.type=sgd", "optimizer.momentum=0.9", "schedule.peak=0.3"],
    "descent": ["optimizer.type=sgd", "schedule.peak=1"],
    "lamb": ["optimizer.type=lamb", "schedule.peak=2e-2"],
}
KEPT = {"adam": {"m", "v"}, "sgd": {"m"}, "descent": set(), "lamb": {"m", "v"}}


class Layouts(RunTest):
    TOLERANCE = 5e-6

    def test_layouts_give_the_serial_curve(self):
        for rule, words in RULES.items():
            words = [*words, "checkpoint.at_end=false"]
            self.pretrain(rule, *words)
            self.assert_learns(self.losses(rule))
            self.check_layout(self.losses(rule), self.TOLERANCE, (2, 2, 1), "parallel.sequence=true", *words)
            self.check_layout(self.losses(rule), self.TOLERANCE, (2, 1, 2), "parallel.bucket=1000", *words)


class GroupedLayouts(Layouts):
    MODEL = [*GROUPED, "train.iterations=20"]
    TOLERANCE = 1e-4  # steps of plain descent, of rate 1, multiply rounding


class Rules(RunTest):
    def test_restarts_give_the_same_bits(self):
        for rule, words in RULES.items():
            with self.subTest(rule):
                words = [*words, "train.iterations=8"]
                self.pretrain(rule, *words)
                for _ in range(2):
                    self.pretrain(f"{rule}-halves", *words, "train.exit_interval=4")
                self.assertEqual(self.losses(f"{rule}-halves"), self.losses(rule))
                tensors, halves = (self.inspect(self.latest(name))["tensors"]
                                   for name in (rule, f"{rule}-halves"))
                self.assertEqual(tensors, halves)
                kept = {tensor["name"].split("/")[1] for tensor in tensors
                        if tensor["name"].startswith("optimizer/")}
                self.assertEqual(kept, KEPT[rule])

    def test_lamb_in_fp16(self):
        self.pretrain("fp32", *RULES["lamb"])
        self.pretrain("fp16", *RULES["lamb"], "precision.compute=fp16",
                      "precision.loss_scale.initial=1024")
        self.assert_close(self.losses("fp16"), self.losses("fp32"), 1e-2, "LAMB in fp16")

    def test_another_rule_is_refused(self):
        self.pretrain("run", "train.iterations=2")
        for words, message in [
                (["optimizer.type=lamb"],
                 "optimizer.type = lamb, but the checkpoint was written with adamw"),
                (RULES["sgd"], "optimizer.type = sgd, but the checkpoint was written with adamw")]:
            result = self.pretrain("run", *words, "train.iterations=4", code=DECK)
            self.assertIn(message, result.err)


class Schedules(RunTest):
    def rates(self, name, *words):
        """The learning rate after every iteration."""
        self.pretrain(name, *words, "train.iterations=6", "checkpoint.at_end=false")
        return [event["learning_rate"] for event in self.events(name, "train")]

    def test_range_test(self):
        words = ["schedule.type=lr-range-test", "schedule.peak=", "schedule.warmup=",
                 "schedule.decay=", "schedule.minimum=1e-4", "schedule.range_test.step=2",
                 "schedule.range_test.rate=4"]
        for dialect in ("megatron", "v1"):
            rates = self.rates(dialect, *words, f"schedule.dialect={dialect}")
            for rate, expected in zip(rates, [3e-4, 5e-4, 7e-4, 9e-4, 11e-4, 13e-4], strict=True):
                self.assertAlmostEqual(rate, expected, delta=1e-12)
            stairs = self.rates(f"{dialect}-stairs", *words, f"schedule.dialect={dialect}",
                                "schedule.range_test.staircase=true")
            for rate, expected in zip(stairs, [1e-4, 5e-4, 5e-4, 9e-4, 9e-4, 13e-4], strict=True):
                self.assertAlmostEqual(rate, expected, delta=1e-12)

    def test_decays(self):
        words = ["schedule.warmup=2", "schedule.decay=10", "schedule.peak=1e-3"]
        halving = [1e-3 * 2.718281828459045 ** (-0.693 * n / 10) for n in (1, 2, 3, 4)]
        for rate, expected in zip(self.rates("exponential", *words, "schedule.type=exponential",
                                             "schedule.dialect=v1"), [5e-4, 1e-3, *halving],
                                  strict=True):
            self.assertAlmostEqual(rate, expected, delta=1e-12)
        roots = [1e-3 * (2 / n) ** 0.5 for n in (3, 4, 5, 6)]
        for rate, expected in zip(self.rates("root", *words, "schedule.type=inverse-square-root"),
                                  [5e-4, 1e-3, *roots], strict=True):
            self.assertAlmostEqual(rate, expected, delta=1e-12)

    def test_a_stable_run_is_resumed_into_decays(self):
        """One run at the peak ends in falls of any shape and length, each as if it had been planned."""
        stable = ["schedule.type=wsd", "schedule.warmup=2", "train.iterations=1000"]
        self.pretrain("stable", *stable, "schedule.decay=1000", "train.exit_interval=8")
        for shape, length in [("linear", 4), ("minus-sqrt", 2)]:
            fall = [*stable, f"schedule.decay={8 + length}", f"train.exit_interval={8 + length}",
                    f"schedule.wsd={{decay: {length}, shape: {shape}}}"]
            self.pretrain(f"planned-{shape}", *fall)
            shutil.copytree(self.folder / "stable", self.folder / shape)
            result = self.pretrain(shape, *fall)
            self.assertIn("step-00000008.h5, iteration 8", result.out)
            rates = [event["learning_rate"] for event in self.events(shape, "train")]
            self.assertEqual(rates[7], 3e-3)
            self.assertEqual(sorted(rates[7:], reverse=True), rates[7:])
            self.assertEqual(rates[-1], 0)
            self.assertEqual(self.losses(shape), self.losses(f"planned-{shape}"))
            planned, resumed = (self.inspect(self.latest(name))["tensors"] for name in (f"planned-{shape}", shape))
            self.assertEqual(resumed, planned)

    def test_weight_decay_ramps(self):
        """A ramp that ends far away tells in the weights; one without a difference does not."""
        steps = ["train.iterations=4", "schedule.decay=4", "schedule.warmup=0"]
        self.pretrain("constant", *steps)
        self.pretrain("flat", *steps, "schedule.weight_decay.type=linear")
        self.pretrain("ramp", *steps, "schedule.weight_decay.type=cosine",
                      "schedule.weight_decay.end=10")
        tensors = {name: self.inspect(self.latest(name))["tensors"]
                   for name in ("constant", "flat", "ramp")}
        self.assertEqual(tensors["constant"], tensors["flat"])
        self.assertNotEqual(tensors["constant"], tensors["ramp"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
