"""What a run reads: blends of datasets, datasets of their own for validation, names, packed and merged
inputs, and documents that end inside a sample."""

import functools
import gzip
import json
import lzma
import math
import os
import shutil
import tarfile
import unittest
from pathlib import Path

import numpy

from runs import (DATA, DECK, DEVICE, FAILED, FINISHED, HERE, IO, SCRATCH, USAGE, RunTest, Started,
                  command_line, dataset, run)

SEQUENCE, BATCH, ITERATIONS = 32, 8, 20  # of tiny.yaml
INTERLEAVED = ["parallel.schedule=interleaved", "parallel.interleave=2"]


@functools.lru_cache(maxsize=None)
def other():
    """The prefix of a second dataset of bytes: this file, a document for each line."""
    prefix = SCRATCH / "other"
    made = run("trireme-preprocess", "--input", Path(__file__), "--format", "text", "--output",
               prefix, "--tokenizer", "bytes", "--append-eod")
    if made.code != FINISHED:
        raise RuntimeError(str(made))
    return Path(f"{prefix}_text_document")


def blend_order(weights, samples):
    """Megatron-LM's order of datasets, in plain Python."""
    weights = [weight / sum(weights) for weight in weights]
    total = sum(math.ceil(samples * weight) for weight in weights)
    taken, order = [0] * len(weights), []
    for i in range(total):
        lags = [weight * max(i, 1.0) - count for weight, count in zip(weights, taken)]
        order.append(lags.index(max(lags)))
        taken[order[-1]] += 1
    return order


class Blends(RunTest):
    def blend(self, *weights):
        return f"data.train=[{weights[0]}, {dataset()}, {weights[1]}, {other()}]"

    def test_is_trained_on_and_gone_on_with(self):
        self.pretrain("whole", self.blend(0.75, 0.25))
        whole = self.losses("whole")
        self.assert_learns(whole)
        self.pretrain("parts", self.blend(0.75, 0.25), "train.exit_interval=9")
        self.pretrain("parts", self.blend(0.75, 0.25))
        self.assertEqual(self.losses("parts"), whole)
        self.pretrain("single")
        self.assertNotEqual(self.losses("single"), whole)
        self.check_layout(whole, 1e-5, (1, 1, 2), self.blend(0.75, 0.25))

    def test_inspect_writes_what_the_run_caches(self):
        cache = self.folder / "cache"
        self.pretrain("run", self.blend(3, 1), f"data.index_cache={cache}", "evaluate.at_end=false")
        samples = ITERATIONS * BATCH
        shown = run("trireme-inspect", 3, dataset(), 1, other(), "--index", "train", "--sequence",
                    SEQUENCE, "--samples", samples, "--seed", 1234, "--split", "90,10,0", "--output",
                    self.folder / "index", "--json")
        self.assertEqual(shown.code, FINISHED, shown)
        report = json.loads(shown.out)
        order = blend_order([3, 1], samples)
        self.assertEqual(report["samples"], len(order))
        self.assertEqual([each["taken"] for each in report["datasets"]],
                         [order.count(0), order.count(1)])
        written = numpy.load(self.folder / "index/dataset_index.npy")
        self.assertEqual((written.dtype, written.tolist()), (numpy.int16, order))
        numbers = numpy.load(self.folder / "index/dataset_sample_index.npy")
        self.assertEqual(numbers.dtype, numpy.int64)
        for which in (0, 1):
            self.assertEqual(numbers[written == which].tolist(), list(range(order.count(which))))
        cached = sorted(cache.glob("*.npy"))
        inspected = sorted((self.folder / "index").rglob("*.npy"))
        self.assertEqual(sorted(path.read_bytes() for path in cached),
                         sorted(path.read_bytes() for path in inspected))

    def test_errors_name_the_way_out(self):
        self.fails(DECK, "give them weights, which let datasets be repeated",
                   f"data.train=[{dataset()}, {other()}]", "train.iterations=100_000")
        self.fails(DECK, "the weight 0 of", self.blend(1, 0))
        bare = run("trireme-inspect", dataset(), other())
        self.assertEqual(bare.code, USAGE, bare)
        self.assertIn("need --index", bare.err)


class OwnDatasets(RunTest):
    def test_validation_has_its_own(self):
        self.pretrain("run", f"data.valid={other()}", f"data.test=[1, {dataset()}, 1, {other()}]",
                      "evaluate.every=10", "evaluate.at_end=true")
        self.assertEqual([(event["iteration"], event["split"])
                          for event in self.events("run", "eval")],
                         [(10, "valid"), (20, "valid"), (20, "test")])
        own = self.evaluate("run", "--split", "valid", f"data.valid={other()}")
        same = self.evaluate("run", "--split", "train", f"data.train={other()}", "data.split=1")
        self.assertEqual((own["loss"], own["tokens"]), (same["loss"], same["tokens"]))
        mixed = self.evaluate("run", "--split", "test", f"data.test=[1, {dataset()}, 1, {other()}]")
        alone = self.evaluate("run", "--split", "test", f"data.test={dataset()}")
        self.assertEqual(mixed["tokens"], own["tokens"] + alone["tokens"])
        self.assertAlmostEqual(mixed["loss"] * mixed["tokens"],
                               own["loss"] * own["tokens"] + alone["loss"] * alone["tokens"],
                               delta=1e-5 * mixed["tokens"])

    def test_tests_need_no_validation(self):
        words = ["data.split=1", "evaluate.at_end="]  # as where no deck says it
        self.fails(IO, "nowhere/nothing", *words, "data.test=nowhere/nothing", "--check")
        self.pretrain("run", *words, f"data.test={other()}")
        self.assertEqual([event["split"] for event in self.events("run", "eval")], ["test"])

    def test_names_stand_for_prefixes(self):
        self.pretrain("prefix")
        self.pretrain("name", f"data.corpora={{licence: {dataset()}}}", "data.train=licence")
        self.assertEqual(self.losses("name"), self.losses("prefix"))

    def test_the_deck_of_a_blend_runs(self):
        run_folder = self.folder / "run"
        result = run("trireme-pretrain", HERE.parents[1] / "inputs/blend.yaml",
                     f"data.corpora={{licence: {dataset()}, readme: {other()}}}",
                     f"run.output={run_folder}", f"run.device={DEVICE}", "train.iterations=20",
                     "log.every=1")
        self.assertEqual(result.code, FINISHED, result)
        self.assert_learns(self.losses("run"))
        self.assertEqual([event["split"] for event in self.events("run", "eval")],
                         ["valid", "test"])

    def test_check_lists_every_dataset(self):
        checked = run("trireme-pretrain", *self.deck_words(
            "run", f"data.train=[1, {dataset()}, 1, {other()}]", "--check"))
        self.assertEqual(checked.code, FINISHED, checked)
        for prefix in (dataset(), other()):
            self.assertIn(f" of {prefix}\n", checked.out)


class Datasets(RunTest):
    """Datasets that are not what the deck or the checkpoint takes them for."""

    def copy(self):
        """The prefix of a copy of the dataset, for tests that damage it."""
        prefix = self.folder / "copy"
        for ending in (".bin", ".idx", ".json"):
            shutil.copy(f"{dataset()}{ending}", f"{prefix}{ending}")
        return prefix

    def test_another_tokenizer_is_refused(self):
        gpt2 = HERE.parents[1] / "tests/data/gpt2"
        words = ["data.tokenizer.type=gpt2", f"data.tokenizer.vocab={gpt2 / 'vocab.json'}",
                 f"data.tokenizer.merges={gpt2 / 'merges.txt'}", "model.vocab="]
        text = f"data.train: '{dataset()}' was made with the tokenizer bytes of 257 ids"
        self.fails(DECK, text, *words)
        self.fails(DECK, text, *words, "--check")
        # Without its record the dataset's ids fit; those of a smaller vocabulary do not.
        copy = self.copy()
        Path(f"{copy}.json").unlink()
        checked = run("trireme-pretrain",
                      *self.deck_words("run", *words, f"data.train={copy}", "--check"))
        self.assertEqual(checked.code, FINISHED, checked)
        self.assertIn("has no copy.json that names its tokenizer", checked.out)
        self.fails(DATA, "holds the token id 256, outside the vocabulary: model.vocab = 200",
                   "data.tokenizer.type=", "model.vocab=200", f"data.train={copy}")

    def test_other_tokens_of_the_same_lengths_are_not_resumed_with(self):
        copy = self.copy()
        self.pretrain("run", f"data.train={copy}", "train.exit_interval=9")
        tokens = numpy.fromfile(f"{copy}.bin", dtype=numpy.uint16)
        tokens[: tokens.size // 2].sort()
        tokens.tofile(f"{copy}.bin")
        refused = self.pretrain("run", f"data.train={copy}", code=DATA)
        self.assertEqual(refused.err.count(f"'{copy}.bin' holds other tokens"), 1, refused)
        shutil.copy(f"{dataset()}.bin", f"{copy}.bin")
        self.pretrain("run", f"data.train={copy}")
        self.pretrain("whole")
        self.assertEqual(self.losses("run"), self.losses("whole"))

    def test_a_dataset_that_is_cut_under_a_run_stops_it_with_a_checkpoint(self):
        for ranks in (1, 2):
            copy, name = self.copy(), f"run{ranks}"
            words = [f"data.train={copy}", "train.iterations=100_000", "schedule.decay=100_000"]
            with self.start(name, *words, ranks=ranks) as started:
                self.wait_until(lambda: len(self.events(name, "train")) > 5, started)
                os.truncate(f"{copy}.bin", 100)
                stopped = started.finish()
            self.assertEqual(stopped.code, IO, stopped)
            self.assertEqual(stopped.err.count(f"'{copy}.bin' ends at byte"), 1, stopped)
            stop = self.stop_event(name)
            self.assertEqual(stop["exit_code"], IO)
            self.assertEqual(self.checkpoints(name), [f"step-{stop['iteration']:08d}.h5"])
            shutil.copy(f"{dataset()}.bin", f"{copy}.bin")
            self.pretrain(name, *words, f"train.exit_interval={stop['iteration'] + 3}", ranks=ranks)
            self.assertEqual(self.stop_event(name)["iteration"], stop["iteration"] + 3)


class Memory(RunTest):
    LARGE = ("model.hidden=16384", "model.layers=40", "model.heads=128")

    def test_a_plan_ends_with_a_verdict(self):
        def verdict(*words):
            planned = run("trireme-pretrain", *self.deck_words("run", "--plan", *words))
            self.assertEqual(planned.code, FINISHED, planned)
            self.assertEqual(planned.out.count("verdict    "), 1, planned)
            return planned.out.splitlines()[-1]

        self.assertTrue(verdict().startswith("verdict    fits: the rank needs "), verdict())
        self.assertIn("this host has free", verdict())
        self.assertTrue(verdict(*self.LARGE).startswith("verdict    does not fit: "))
        on_gpu = ["run.device=cuda", "--memory", "80GiB"]
        self.assertIn("of the 80.0 GiB that each GPU has (--memory)", verdict(*on_gpu))
        self.assertTrue(verdict(*self.LARGE, *on_gpu).startswith("verdict    does not fit: "))
        self.assertIn("parallel.tensor", verdict(*self.LARGE, *on_gpu))

    def test_what_the_host_cannot_hold_is_refused_before_anything_is_written(self):
        for ranks in (1, 2):
            self.fails(FAILED, "neither recomputation, parallel.zero nor a smaller batch.micro",
                       *self.LARGE, ranks=ranks)

    def test_jobs_are_compared_where_the_memory_is_told(self):
        words = ["run.device=cuda", *self.LARGE, "--print-job", "slurm"]
        self.fails(DECK, "--print-job: does not fit: ", *words, "--memory", "80GiB")
        script = run("trireme-pretrain", *self.deck_words("run", *words))
        self.assertEqual(script.code, FINISHED, script)
        self.assertIn("\n# Memory: each rank needs ", script.out)
        self.assertIn("the memory of the GPUs is not known here: --memory SIZE compares", script.out)


class Documents(RunTest):
    RESETS = ("data.reset_positions=true", "data.reset_attention=true")

    def test_resets_are_the_same_on_every_layout(self):
        self.pretrain("serial", *self.RESETS)
        reference = self.losses("serial")
        self.assert_learns(reference)
        for layout in [(2, 1, 1), (1, 2, 1), (1, 1, 2), (1, 4, 1)]:
            self.check_layout(reference, 1e-5, layout, *self.RESETS)
        self.check_layout(reference, 1e-5, (2, 1, 1), *self.RESETS, "parallel.sequence=true")
        self.check_layout(reference, 1e-5, (1, 2, 1), *self.RESETS, "parallel.schedule=zero-bubble")
        self.check_layout(reference, 1e-5, (1, 4, 1), *self.RESETS, "parallel.schedule=zero-bubble")
        self.check_layout(reference, 1e-5, (1, 2, 2), *self.RESETS, *INTERLEAVED)
        self.check_layout(reference, 1e-5, (1, 4, 1), *self.RESETS, "parallel.partition=0-2-2-0",
                          "recompute.granularity=full")
        losses = [reference]
        for name, words in [("neither", ()), ("positions", self.RESETS[:1]),
                            ("attention", self.RESETS[1:])]:
            self.pretrain(name, *words)
            self.assertNotIn(self.losses(name), losses)
            losses.append(self.losses(name))
        self.check_layout(self.losses("positions"), 1e-5, (1, 2, 1), *self.RESETS[:1], *INTERLEAVED)
        self.check_layout(self.losses("attention"), 1e-5, (1, 4, 1), *self.RESETS[1:])

    def test_the_loss_behind_a_document_may_be_left_out(self):
        self.pretrain("run")
        counted = self.evaluate("run")
        left_out = self.evaluate("run", "data.eod_loss=false")
        self.assertLess(left_out["tokens"], counted["tokens"])

    def test_the_end_of_documents_must_be_known(self):
        self.fails(DECK, "data.reset_positions = true needs the end-of-document token",
                   "data.reset_positions=true", "data.tokenizer.type=", "model.vocab=257")


class Tools(RunTest):
    def preprocess(self, *words, code=FINISHED):
        result = run("trireme-preprocess", *words)
        self.assertEqual(result.code, code, result)
        return result

    def encode(self, source, name, code=FINISHED):
        return self.preprocess("--input", source, "--output", self.folder / name, "--tokenizer",
                               "bytes", "--append-eod", code=code)

    def files(self, name):
        return [Path(f"{self.folder / name}.{kind}").read_bytes() for kind in ("bin", "idx")]

    def test_split_then_merge_keeps_every_document(self):
        lines = [json.dumps({"text": f"document {i}"}) for i in range(200)]
        source = self.folder / "all.jsonl"
        source.write_text("".join(line + "\n" for line in lines))
        words = ["split", "--input", source, "--output", self.folder, "--fractions", "0.9,0.07,0.03"]
        self.assertEqual(self.preprocess(*words).out,
                         "".join(f"{self.folder}/{name}.jsonl: {count} lines\n"
                                 for name, count in [("train", 180), ("valid", 14), ("test", 6)]))
        names = ["train", "valid", "test"]
        first = [(self.folder / f"{name}.jsonl").read_bytes() for name in names]
        self.assertEqual(sorted(b"".join(first).decode().splitlines()), sorted(lines))
        self.preprocess(*words, "--seed", 7)
        self.assertNotEqual((self.folder / "test.jsonl").read_bytes(), first[2])
        for name in names:
            self.encode(self.folder / f"{name}.jsonl", name)
        merged = self.preprocess("merge", "--output", self.folder / "merged",
                                 *(self.folder / f"{name}_text_document" for name in names))
        self.assertIn("merged.{bin,idx}: 200 documents, 200 sequences, ", merged.out)
        together = self.folder / "together.jsonl"
        together.write_bytes(b"".join((self.folder / f"{name}.jsonl").read_bytes()
                                      for name in names))
        self.encode(together, "together")
        self.assertEqual(self.files("merged"), self.files("together_text_document"))

    def test_packed_inputs_give_the_same_dataset(self):
        text = "".join(f"line {i}, {i * i}\n" for i in range(2000)).encode()
        plain = self.folder / "a.txt"
        plain.write_bytes(text)
        self.encode(plain, "plain")
        (self.folder / "a.txt.gz").write_bytes(gzip.compress(text))
        (self.folder / "a.txt.xz").write_bytes(lzma.compress(text))
        with tarfile.open(self.folder / "a.tar.xz", "w:xz") as archive:
            archive.add(plain, "part/a.txt")
        for name in ("a.txt.gz", "a.txt.xz", "a.tar.xz"):
            packed = self.folder / name
            self.encode(packed, "packed")
            self.assertEqual(self.files("packed_text_document"), self.files("plain_text_document"))
            packed.write_bytes(packed.read_bytes()[:-100])
            cut = self.encode(packed, "cut", code=DATA)
            self.assertEqual(cut.err.count("\n"), 1, cut)
            self.assertIn(f"{packed}", cut.err)
            self.assertIn("broken ", cut.err)
            self.assertEqual(list(self.folder.glob("cut*")), [])

    def test_two_programs_do_not_write_one_dataset(self):
        pipe, output = self.folder / "pipe.txt", self.folder / "x"
        os.mkfifo(pipe)
        part = self.folder / "x_text_document.idx.part"
        words = ["--input", pipe, "--output", output, "--tokenizer", "bytes", "--append-eod"]
        with Started(command_line("trireme-preprocess", *words)) as first:
            self.wait_until(part.exists, first)
            second = self.encode(__file__, "x", code=IO)
            self.assertIn("is being written by another program", second.err)
            self.assertTrue(part.exists())
            pipe.write_bytes(b"one\ntwo\n")
            self.assertEqual(first.finish().code, FINISHED)
        (self.folder / "y.txt").write_bytes(b"one\ntwo\n")
        self.encode(self.folder / "y.txt", "y")
        self.assertEqual(self.files("x_text_document"), self.files("y_text_document"))

    def test_errors_have_their_codes(self):
        self.assertIn("unknown command 'mrege'", self.preprocess("mrege", code=USAGE).err)
        self.preprocess("merge", dataset(), code=USAGE)
        self.preprocess("merge", "--output", self.folder / "x", code=USAGE)
        self.preprocess("split", "--input", "-", "--output", self.folder, "--fractions", "1",
                        code=USAGE)
        self.preprocess("split", "--input", __file__, "--output", self.folder, "--fractions", "9,1",
                        code=DATA)
        self.assertEqual(list(self.folder.iterdir()), [])
        lazy = self.folder / "wiki.lazy"
        lazy.mkdir()
        self.assertIn("lazy loader", self.encode(lazy, "x", code=DATA).err)


if __name__ == "__main__":
    unittest.main(verbosity=2)
