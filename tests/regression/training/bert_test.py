"""BERT in the programs: layouts, recomputation, restart, evaluation, and what it is refused for."""

import functools
import gzip
import math
import sys
import unittest

from runs import DATA, DECK, HERE, SCRATCH, RunTest, layout_words, run

sys.path.append(str(HERE.parents[1] / "apps" / "bench"))
from bert_against_pytorch import write_records  # noqa: E402

TOLERANCE = 2e-6
ZERO_BUBBLE = "parallel.schedule=zero-bubble"


@functools.lru_cache(maxsize=None)
def sentences():
    """The licence as a dataset of sentences, a document for each line, and its vocabulary."""
    SCRATCH.mkdir(parents=True, exist_ok=True)
    text, vocab, prefix = SCRATCH / "sentences.txt", SCRATCH / "vocab.txt", SCRATCH / "sentences"
    licence = (HERE.parents[1] / "LICENSE").read_text().split("\n\n")
    text.write_text("".join(" ".join(part.split()) + "\n" for part in licence))
    wordpiece = ["--lowercase", "true"]
    for words in [["trireme-tokenizer", "train", "--type", "wordpiece", "--input", text, "--output", vocab,
                   "--size", 400, "--quiet", *wordpiece],
                  ["trireme-preprocess", "--input", text, "--output", prefix, "--tokenizer", "wordpiece",
                   "--vocab", vocab, "--split-sentences", *wordpiece]]:
        made = run(*words)
        if made.code != 0:
            raise RuntimeError(str(made))
    return f"{prefix}_text_sentence", vocab


class Bert(RunTest):
    def deck_words(self, name, *words):
        dataset, vocab = sentences()
        tokenizer = f"data.tokenizer={{type: wordpiece, vocab: {vocab}, lowercase: true}}"
        return super().deck_words(name, "model.family=bert", f"data.train={dataset}", tokenizer,
                                  f"data.index_cache={self.folder}", "checkpoint.at_end=false",
                                  "train.iterations=10", "batch.micro=2", *words)

    def sentence_losses(self, name):
        return [event["sentence_loss"] for event in self.events(name, "train")]

    def check(self, serial, layout, *words):
        """Both losses are the serial ones."""
        self.check_layout(self.losses(serial), TOLERANCE, layout, *words)
        name = " ".join(["tensor {} pipeline {} data {}".format(*layout), *words]).replace(" ", "-")
        self.assert_close(self.sentence_losses(name), self.sentence_losses(serial), 10 * TOLERANCE, name)

    def test_layouts_with_dropout(self):
        self.pretrain("serial")
        self.assertLess(self.losses("serial")[-1], self.losses("serial")[0])
        self.check("serial", (2, 2, 1), "parallel.sequence=true", ZERO_BUBBLE)
        self.check("serial", (1, 2, 2), "parallel.schedule=interleaved", "parallel.interleave=2",
                   "parallel.zero=0")
        self.check("serial", (2, 1, 2), "parallel.zero=3", "parallel.bucket=1000")
        line = (self.folder / "serial" / "console.log").read_text()
        self.assertRegex(line, r"\| lm loss: \S+E\S+ \| sop loss: \S+E\S+ \| loss scale: 1.0 \|")

    def test_layouts_with_norms_after_sublayers(self):
        words = ["model.bert.post_norm=true", "model.bert.deep_init=true", "model.bert.binary_head=false"]
        self.pretrain("serial", *words)
        self.check_layout(self.losses("serial"), TOLERANCE, (2, 2, 1), *words)
        self.assertNotIn("sentence_loss", self.events("serial", "train")[0])

    def test_recomputation_changes_no_bit(self):
        words = ["precision.compute=bf16", "parallel.pipeline=2"]
        self.pretrain("kept", *words, ranks=2)
        for kind in ["full", "selective"]:
            self.pretrain(kind, *words, f"recompute.granularity={kind}", ranks=2)
            self.assertEqual(self.losses(kind), self.losses("kept"), kind)

    def test_restart_changes_no_bit(self):
        words = ["optimizer.type=lamb", "parallel.zero=2", "checkpoint.at_end=true"]
        self.pretrain("whole", *words, ranks=2)
        self.pretrain("halves", *words, "train.exit_interval=5", ranks=2)
        self.assertEqual(len(self.losses("halves")), 5)
        self.pretrain("halves", *words, ranks=2)
        for losses in [self.losses, self.sentence_losses]:
            self.assertEqual(losses("halves"), losses("whole"))
        tensors = [self.inspect(self.latest(name))["tensors"] for name in ("whole", "halves")]
        self.assertEqual(*tensors)

    def test_embeddings_of_master_weights(self):
        """Lookups in fp32 change the losses of bf16, not a restart, and follow on every layout."""
        words = ["precision.compute=bf16", "parallel.zero=0", "precision.embedding=fp32"]
        kept = ["checkpoint.at_end=true"]
        self.pretrain("same", *words[:2])
        self.pretrain("whole", *words, *kept)
        for _ in range(2):
            self.pretrain("halves", *words, *kept, "train.exit_interval=5")
        self.assertEqual(self.losses("halves"), self.losses("whole"))
        tensors = [self.inspect(self.latest(name))["tensors"] for name in ("whole", "halves")]
        self.assertEqual(*tensors)
        self.assertNotEqual(self.losses("whole"), self.losses("same"))
        self.assert_close(self.losses("whole"), self.losses("same"), 1e-2, "rounded lookups")
        self.assertGreater(self.evaluate("whole", *words)["loss"], 0)  # of the weights in 16 bits
        self.pretrain("ranks", *words, *layout_words(2, 2, 1), "parallel.sequence=true", ranks=4)
        self.assert_close(self.losses("ranks"), self.losses("whole"), 1e-2, "four ranks")

    def test_evaluation(self):
        self.pretrain("run", "evaluate.at_end=true", "checkpoint.at_end=true")
        at_end = self.events("run", "eval")[0]
        self.assertTrue(0 <= at_end["sentence_accuracy"] <= 1)
        self.assertGreater(at_end["sentence_loss"], 0)
        scores = [self.evaluate("run", *words, ranks=ranks) for ranks, *words in
                  [(1,), (2, "parallel.tensor=2"), (4, "parallel.pipeline=2", "parallel.tensor=2")]]
        for score in scores:
            self.assertAlmostEqual(score["loss"], scores[0]["loss"], delta=1e-5)
            self.assertEqual(score["tokens"], scores[0]["tokens"])
            for key in ["sentence_accuracy", "sentences"]:
                self.assertEqual(score[key], scores[0][key])
        self.assertAlmostEqual(scores[0]["perplexity"], math.exp(scores[0]["loss"]), places=6)
        counted = self.evaluate("run", "--task", "ngram")
        self.assertEqual(counted["tokens"], scores[0]["tokens"])
        self.assertNotIn("bigram", counted)
        result = run("trireme-evaluate", *self.deck_words("run", "--input", SCRATCH / "sentences.txt"))
        self.assertEqual(result.code, DECK, result)
        self.assertIn("predicts masked tokens", result.err)
        result = run("trireme-generate", "--checkpoint", self.folder / "run", "--prompt", "a")
        self.assertEqual(result.code, DATA, result)
        self.assertIn("only gpt and llama models generate text", result.err)

    def test_memory_is_planned(self):
        """As memory_test does: within 2 % of what the rank with the highest peak takes."""
        for name, layout, *words in [("bf16", (1, 1, 1), "precision.compute=bf16", "parallel.zero=0",
                                      "precision.embedding=fp32"),
                                     ("sharded", (1, 1, 2), "parallel.zero=3")]:
            self.pretrain(name, "model.hidden=512", "model.heads=8", "model.sequence=16", "model.vocab=8192",
                          "train.iterations=2", *layout_words(*layout), *words, ranks=math.prod(layout))
            event = self.events(name, "memory")[0]
            self.assertLess(abs(event["peak_bytes"] / event["planned_bytes"] - 1), 0.02, f"{name}: {event}")

    def test_first_release_samples(self):
        self.pretrain("run", "data.bert.dialect=v0")
        self.assertLess(self.losses("run")[-1], self.losses("run")[0])

    def test_refusals(self):
        for text, *words in [
            ("recompute.granularity = selective recomputes norms", "model.bert.post_norm=true",
             "recompute.granularity=selective"),
            ("data.bert.dialect = v0; leave it out", "data.bert.dialect=v0", "data.bert.max_ngram=2"),
        ]:
            self.fails(DECK, text, *words)


class Records(RunTest):
    """TFRecords of create_pretraining_data, one of the files compressed; data.split is not given."""

    def test_records_that_do_not_fit_the_deck(self):
        self.fails(DATA, "input_ids has 64 elements, model.sequence is 32", "model.sequence=32")

    def deck_words(self, name, *words):
        files = [self.folder / "a.tfrecord", self.folder / "b.tfrecord.gz"]
        if not files[0].exists():
            write_records(files[0], sequence=64, predictions=9, count=40, least=20, vocabulary=2000)
            files[1].write_bytes(gzip.compress(files[0].read_bytes()))
        return [HERE / "tiny_bert.yaml", f"data.train=[{files[0]}, {files[1]}]", "run.device=host",
                f"run.output={self.folder / name}", "checkpoint.at_end=true", *words]

    def test_training_and_restart(self):
        self.pretrain("whole", "train.iterations=12")
        losses = self.losses("whole")
        self.assertEqual(len(losses), 12)
        self.assertLess(losses[-1], losses[0])
        self.pretrain("halves", "train.iterations=12", "train.exit_interval=5", ranks=2)
        self.pretrain("halves", "train.iterations=12", ranks=2)
        self.pretrain("whole2", "train.iterations=12", ranks=2)
        self.assertEqual(self.losses("halves"), self.losses("whole2"))
        self.assert_close(self.losses("whole2"), losses, TOLERANCE, "two data ranks")
        tensors = [self.inspect(self.latest(name))["tensors"] for name in ("halves", "whole2")]
        self.assertEqual(*tensors)


if __name__ == "__main__":
    unittest.main(verbosity=2)
