"""Runs that diverge: they stop with their own exit code, name what is not finite, and keep their good checkpoints."""

import unittest

from runs import DIVERGED, FAILED, RunTest, layout_words, run

try:
    import h5py
    import numpy
except ImportError:
    h5py = None

EXPLODES = ["schedule.peak=1e30", "schedule.warmup=0", "optimizer.clip=0", "train.iterations=1000",
            "train.diverged_after=5"]
FP16 = ["precision.compute=fp16", "precision.loss_scale.initial=4294967296"]


def set_element(path, name, index, value):
    """Changes one element of a checkpoint's tensor, and makes it a checkpoint of version 1, whose checksums are sums
    over the elements and whose structure has none: HDF5's libraries drop that of version 2."""
    def checksum(values):
        z = values.ravel().view(numpy.uint32).astype(numpy.uint64)
        z += numpy.arange(1, z.size + 1, dtype=numpy.uint64) * numpy.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
        return numpy.sum(z ^ (z >> numpy.uint64(31)), dtype=numpy.uint64)

    def seal(key, tensor):
        if key != "deck" and "checksum" in tensor.attrs:
            tensor.attrs.modify("checksum", checksum(tensor[()]))

    with h5py.File(path, "r+") as file:
        file[name][index] = value
        file.visititems(seal)
        file.attrs.modify("format_version", file.attrs["format_version"].dtype.type(1))


class Diverged(RunTest):
    def check_diverged(self, name, result):
        """One message on standard error, the stop event, and what `follow` says."""
        self.assertEqual(result.err.count("training diverged: "), 1, result)
        self.assertNotIn("\ncontinue   ", result.out)
        stop = self.stop_event(name)
        self.assertEqual((stop["reason"], stop["exit_code"]), ("training diverged", DIVERGED))
        page = run("trireme-report", "follow", self.folder / name, "--once")
        self.assertEqual(page.code, FAILED, page)
        self.assertRegex(page.out, r"running +NO +training diverged: iteration \d+, exit code 76\n")
        self.assertIn("note          warning of iteration ", page.out)
        return stop["iteration"]

    def check_explosion(self, ranks, *words):
        self.pretrain("run", "train.iterations=6", "checkpoint.every=2", *words, ranks=ranks)
        good = self.checkpoints("run")
        self.assertEqual(len(good), 3)
        result = self.pretrain("run", *EXPLODES, "checkpoint.every=1", "checkpoint.keep=1", *words,
                               ranks=ranks, code=DIVERGED)
        # Iteration 7 has a good gradient and ruins the weights: the five after it are skipped.
        self.assertEqual(self.check_diverged("run", result), 12)
        self.assertIn("5 iterations in a row up to iteration 12 had no finite loss", result.err)
        self.assertRegex(result.err, r"the gradient [a-z0-9/]+\[\d+(, \d+)?\]" +
                         (r" on rank \d \(.*\)" if ranks > 1 else "") + " is nan; ")
        self.assertEqual(self.checkpoints("run"), [*good, "step-00000007.h5"])
        [absurd] = [event for event in self.events("run", "warning") if event["iteration"] == 7]
        self.assertRegex(absurd["message"], "the weights are absurdly large, .* the largest is ")
        postponed = [event["iteration"] for event in self.events("run", "warning")
                     if event["message"].startswith("no checkpoint of iteration ")]
        self.assertEqual(postponed, [8], "said once")

    def test_a_learning_rate_that_explodes(self):
        self.check_explosion(1)

    def test_on_two_ranks(self):
        self.check_explosion(2, *layout_words(1, 1, 2))

    def test_a_single_bad_iteration_at_the_end_is_no_success(self):
        result = self.pretrain("run", *EXPLODES, "train.iterations=2", code=DIVERGED)
        self.assertEqual(self.check_diverged("run", result), 2)
        self.assertEqual(self.checkpoints("run"), [])

    @unittest.skipUnless(h5py, "python3-h5py is not installed")
    def test_weights_that_are_not_finite(self):
        self.pretrain("run", "train.iterations=2")
        path = self.latest("run")
        set_element(path, "model/layers/1/mlp/up/weight", (3, 17), float("nan"))
        content = path.read_bytes()
        named = f"'{path}' has weights that are not finite: the weight layers/1/mlp/up/weight[3, 17]"
        for ranks in (1, 2):
            words = self.deck_words("run", f"parallel.data={ranks}")
            for program in ("trireme-pretrain", "trireme-evaluate"):
                result = run(program, *words, ranks=ranks)
                self.assertEqual(result.code, DIVERGED, result)
                self.assertEqual(result.err.count(named), 1, result)
        self.assertEqual(path.read_bytes(), content)
        self.assertEqual(self.checkpoints("run"), [path.name])

    @unittest.skipUnless(h5py, "python3-h5py is not installed")
    def test_a_weight_that_is_absurdly_large(self):
        self.pretrain("run", "train.iterations=2")
        path = self.latest("run")
        set_element(path, "model/embedding/position", (31, 5), 2e18)
        result = run("trireme-pretrain", *self.deck_words("run", "train.iterations=3"))
        warning = self.events("run", "warning")[0]
        self.assertIn("the largest is 2e+18 in embedding/position[31, 5]", warning["message"])
        self.assertIn(f"warning: iteration 2: {warning['message']}\n", result.out)

    @unittest.skipUnless(h5py, "python3-h5py is not installed")
    def test_an_evaluation_without_a_finite_loss_fails(self):
        self.pretrain("run", "train.iterations=2")
        set_element(self.latest("run"), "model/final_norm/weight", (0,), 3e38)
        result = run("trireme-evaluate", *self.deck_words("run", "--json"))
        self.assertEqual(result.code, DIVERGED, result)
        self.assertIn("on the valid split is not finite: the model has diverged", result.err)
        self.assertEqual(result.out, "")

    def test_the_search_for_a_loss_scale_is_no_divergence(self):
        self.pretrain("run", *FP16, "train.diverged_after=1")
        events = self.events("run", "train")
        self.assertGreater(sum(event["skipped"] for event in events), 8)
        self.assertEqual(events[-1]["skipped"], 0)

    def test_the_search_for_a_loss_scale_ends_at_its_minimum(self):
        result = self.pretrain("run", *FP16, "precision.loss_scale.minimum=1073741824",
                               "train.diverged_after=3", code=DIVERGED)
        # One overflow for the hysteresis, two that halve the scale, three at the minimum.
        self.assertEqual(self.check_diverged("run", result), 6)
        self.assertEqual(self.stop_event("run")["exit_code"], DIVERGED)


if __name__ == "__main__":
    unittest.main(verbosity=2)
