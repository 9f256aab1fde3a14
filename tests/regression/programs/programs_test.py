"""What the programs do with a run: evaluate, generate, inspect, h5py; and a run that overflows."""

import json
import math
import unittest

from runs import DECK, DIVERGED, FINISHED, HERE, IO, USAGE, RunTest, run

try:
    import h5py
    import numpy
except ImportError:
    h5py = None


class AfterTraining(RunTest):
    def setUp(self):
        super().setUp()
        self.pretrain_once("run", "parallel.tensor=2", "parallel.data=2", ranks=4)

    @unittest.skipUnless(h5py, "python3-h5py is not installed")
    def test_h5py_sees_full_logical_tensors(self):
        path = self.latest("run")
        listed = {tensor["name"]: tensor for tensor in self.inspect(path)["tensors"]}
        with h5py.File(path, "r") as file:
            found = {}
            file.visititems(lambda name, item: found.update({name: item})
                            if isinstance(item, h5py.Dataset) and name != "deck" else None)
            self.assertEqual(set(found), set(listed))
            for name, tensor in found.items():
                self.assertEqual(list(tensor.shape), listed[name]["shape"], name)
                squares = float(numpy.sum(numpy.square(tensor[()], dtype=numpy.float64)))
                self.assertTrue(
                    math.isclose(squares, listed[name]["sum_of_squares"], rel_tol=1e-12), name)
            hidden = 32
            shapes = {"embedding/word": (257, hidden), "embedding/position": (32, hidden),
                      "layers/3/attention/qkv/weight": (3 * hidden, hidden),
                      "layers/0/mlp/up/weight": (4 * hidden, hidden),
                      "layers/0/mlp/down/weight": (hidden, 4 * hidden), "final_norm/bias": (hidden,)}
            for group in ("model", "optimizer/m", "optimizer/v"):
                for name, shape in shapes.items():
                    self.assertEqual(file[f"{group}/{name}"].shape, shape)
            self.assertEqual(file.attrs["iteration"], 20)
            self.assertEqual(file.attrs["consumed_samples"], 160)
            self.assertIn("layers: 4", file["deck"].asstr()[()])

    def test_evaluate_gives_one_loss_on_every_layout(self):
        reference = self.evaluate("run")
        self.assertEqual(reference["iteration"], 20)
        self.assertLess(reference["loss"], 0.9 * math.log(257))
        self.assertAlmostEqual(reference["perplexity"], math.exp(reference["loss"]), places=6)
        for ranks, *words in [(2, "parallel.tensor=2"), (2,), (4, "parallel.pipeline=4"),
                              (4, "parallel.tensor=4", "parallel.sequence=true"),
                              (4, "parallel.tensor=2"), (3, "parallel.tensor=2"),
                              (3, "parallel.tensor=2", "recompute.granularity=full",
                               "recompute.partition=true"),
                              (2, "batch.micro=5", "batch.global=5")]:
            found = self.evaluate("run", *words, ranks=ranks)
            self.assertEqual(found["tokens"], reference["tokens"], (ranks, words))
            self.assertTrue(math.isclose(found["loss"], reference["loss"], rel_tol=1e-6),
                            (ranks, words, found, reference))

    def test_evaluate_counts_baselines(self):
        found = self.evaluate("run", "--task", "ngram")
        self.assertLess(found["bigram"], found["unigram"])
        self.assertLess(found["unigram"], math.log(257))

    def test_evaluate_refuses_what_is_wrong(self):
        cache = self.folder / "cache"
        absent = run("trireme-evaluate", *self.deck_words("absent", f"data.index_cache={cache}"))
        self.assertEqual(absent.code, IO, absent)
        self.assertIn("there is no checkpoint", absent.err)
        self.assertFalse(cache.exists(), "an index cache is written for a run that has no checkpoint")
        small = run("trireme-evaluate", *self.deck_words("run", "--split", "test"))
        self.assertEqual(small.code, DECK, small)
        self.assertIn("the test part of", small.err)
        other = run("trireme-evaluate", *self.deck_words("run", "model.hidden=64"))
        self.assertEqual(other.code, DECK, other)
        self.assertIn("model.hidden = 64, but the checkpoint was written with 32", other.err)
        for option in (["--checkpoint", self.folder / "run"], ["--all-checkpoints"]):
            counted = run("trireme-evaluate", *self.deck_words("run", "--task", "ngram", *option))
            self.assertEqual(counted.code, USAGE, counted)
            self.assertIn(f"takes no {option[0]}", counted.err)

    def test_greedy_generation_repeats_itself(self):
        words = ["--checkpoint", self.folder / "run", "--prompt", "Licensed under the", "--greedy",
                 "--tokens", 12]
        first = run("trireme-generate", *words)
        self.assertEqual(first.code, FINISHED, first)
        self.assertGreater(len(first.out), len("Licensed under the"))
        self.assertEqual(run("trireme-generate", *words).out, first.out)
        refused = run("trireme-generate", *words, "--device", "gpu")
        self.assertEqual(refused.code, USAGE, refused)
        self.assertIn("--device gpu: expected auto, host or cuda", refused.err)


class Bench(RunTest):
    def test_a_burn_in_repeats_its_results(self):
        result = run("trireme-bench", "burn-in", "--device", "host", "--minutes", 0.001)
        self.assertEqual(result.code, 0, result)
        self.assertRegex(result.out, r"burn-in of the CPU on .*: \d+ GEMMs of 512 in fp32, 0 of them wrong; \d+ passes "
                                     r"over 64.0 MiB, 0 reads of 32.0 MiB wrong, in ")
        refused = run("trireme-bench", "burn-in", "--device", "host", "--minutes", 0)
        self.assertEqual(refused.code, 2, refused)

    def test_what_is_wrong_is_said_once(self):
        for command in ("gemm", "kernels"):
            refused = run("trireme-bench", command, "--device", "host", "--only", "zzz")
            self.assertEqual((refused.code, refused.out), (USAGE, ""), refused)
            self.assertIn("--only zzz: no operation's name contains this; there are ", refused.err)
        refused = run("trireme-bench", "comm", "--sizes", "0.1", ranks=2)
        self.assertEqual(refused.code, USAGE, refused)
        self.assertEqual(refused.err.count("0.1"), 1, refused)

    def test_steps_of_a_deck_without_data_on_two_ranks(self):
        result = run("trireme-bench", "step", HERE / "tiny.yaml", "run.device=host",
                     "parallel.tensor=2", "--repeats", "1", "--json", ranks=2)
        self.assertEqual(result.code, FINISHED, result)
        measured = json.loads(result.out)
        self.assertEqual(measured["ranks"], 2, measured)


class Overflow(RunTest):
    def check(self, ranks, *words):
        result = self.pretrain("run", "schedule.peak=1e30", "schedule.warmup=0", "optimizer.clip=0",
                               "train.exit_interval=15", *words, ranks=ranks)
        events = self.events("run", "train")
        self.assertEqual(len(events), 15)
        self.assertEqual((events[0]["skipped"], events[0]["nan"]), (0, 0))
        self.assertIsNone(events[-1]["loss"])
        attributes = self.inspect(self.latest("run"))["attributes"]
        self.assertEqual(attributes["iteration"], 15)
        self.assertEqual(attributes["consumed_samples"], 120)
        self.assertEqual(attributes["bad_iterations"], 14)
        self.assertGreater(attributes["skipped"], 0)
        self.assertEqual(attributes["skipped"], sum(event["skipped"] for event in events))
        self.assertEqual(attributes["nan"], sum(event["nan"] for event in events))
        self.assertEqual(attributes["applied_iterations"], 15 - attributes["skipped"])
        self.assertIn("number of skipped iterations:   1 | number of nan iterations:   1 |",
                      result.out)
        # The count of bad iterations continues after a restart.
        result = self.pretrain("run", *words, ranks=ranks, code=DIVERGED)
        self.assertIn("19 iterations in a row up to iteration 20 had no finite loss", result.err)
        self.assertEqual(self.latest("run").name, "step-00000015.h5")

    def test_one_rank(self):
        self.check(1)

    def test_two_stages(self):
        self.check(2, "parallel.pipeline=2")

    def test_two_shards(self):
        self.check(2, "parallel.data=2")


if __name__ == "__main__":
    unittest.main(verbosity=2)
