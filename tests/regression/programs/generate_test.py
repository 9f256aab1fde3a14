"""trireme-generate on any layout and batch, its formats, its limits, and on a terminal."""

import contextlib
import json
import math
import os
import pty
import select
import shutil
import signal
import subprocess
import time
import unittest

from runs import BIN, DATA, DEVICE, FINISHED, GROUPED, HERE, PATIENCE, SCRATCH, USAGE, RunTest, dataset, run

FILES = HERE.parent / "data/encdec"  # Yuan's tokenizer
PROMPTS = ["Licensed under the Apache", "the", "You may not use this ", "Work"]


class GenerateTest(RunTest):
    """Tests of a model that is trained once."""

    @classmethod
    def setUpClass(cls):
        cls.run_folder = SCRATCH / cls.__name__ / "trained"
        cls.train(cls.run_folder)

    @classmethod
    def train(cls, folder, *words):
        shutil.rmtree(folder, ignore_errors=True)
        result = run("trireme-pretrain", HERE / "tiny.yaml", f"data.train={dataset()}", f"run.output={folder}",
                     f"run.device={DEVICE}", *cls.MODEL, "schedule.peak=1e-2", "train.iterations=60", *words)
        if result.code != FINISHED:
            raise RuntimeError(str(result))

    def generate(self, *words, ranks=1, code=FINISHED, folder=None):
        result = run("trireme-generate", "--checkpoint", folder or self.run_folder, "--device", DEVICE, *words,
                     ranks=ranks)
        self.assertEqual(result.code, code, result)
        return result

    def lines(self, *words, ranks=1, folder=None):
        return [json.loads(line)
                for line in self.generate("--json", *words, ranks=ranks, folder=folder).out.splitlines()]

    def prompts(self):
        return [word for prompt in PROMPTS for word in ("--prompt", prompt)]


class Layouts(GenerateTest):
    def test_layout_batch_and_cache_do_not_change_the_text(self):
        greedy = ["--greedy", "--repetition-penalty", 1.5]
        for sampling in (greedy, ["--seed", 7, "--temperature", 0.7, "--top-k", 20]):
            words = [*self.prompts(), "--tokens", 7, *sampling]
            expected = [line["text"] for line in self.lines(*words, "--recompute")]
            self.assertGreater(len(set(expected)), 2, "the test shows little")
            cases = [([], 1), (["--batch", 1], 1), (["--tensor", 2], 2)]
            if sampling == greedy:
                cases += [(["--pipeline", 2], 2), (["--tensor", 4], 4), (["--pipeline", 4], 4),
                          (["--batch", 64], 1), (["--cache", 128], 1),
                          (["--tensor", 2, "--pipeline", 2, "--batch", 3, "--cache", 64], 4)]
            if os.environ.get("TRIREME_LAYOUTS") == "all":
                cases = [(["--tensor", t, "--pipeline", p, "--batch", b], t * p)
                         for t in (1, 2, 4) for p in (1, 2, 4) for b in (1, 64)]
            for layout, ranks in cases:
                with self.subTest(sampling=sampling, layout=layout):
                    found = self.lines(*words, *layout, ranks=ranks)
                    self.assertEqual([line["text"] for line in found], expected)


class GroupedLayouts(Layouts):
    MODEL = GROUPED


class Generate(GenerateTest):
    def test_a_sliding_window(self):
        """Texts longer than model.window: the same on any layout and without the cache; evaluation agrees."""
        folder = self.folder / "window"
        deck = [HERE / "tiny.yaml", f"data.train={dataset()}", "run.device=host", f"run.output={folder}",
                "model.family=llama", "model.window=6", "model.kv_heads=2", "train.iterations=20", "schedule.peak=1e-2"]
        trained = run("trireme-pretrain", *deck)
        self.assertEqual(trained.code, FINISHED, trained)
        words = [*self.prompts()[:6], "--greedy", "--tokens", 6, "--logprobs", 0]
        texts = []
        for layout, ranks in ((["--recompute"], 1), ([], 1), (["--batch", 1], 1), (["--tensor", 2], 2),
                              (["--pipeline", 2], 2)):
            lines = self.lines(*words, *layout, ranks=ranks, folder=folder)
            texts.append([line["text"] for line in lines])
            self.assertEqual(texts[-1], texts[0], layout)
        targets = self.folder / "window.jsonl"
        targets.write_text(json.dumps({"prompt": PROMPTS[0], "target": texts[0][0]}) + "\n")
        found = run("trireme-evaluate", *deck, "--task", "targets", "--input", targets, "--json")
        mean = -sum(token["logprob"] for token in lines[0]["logprobs"]) / 6
        self.assertTrue(math.isclose(json.loads(found.out)["loss"], mean, rel_tol=1e-4), found)

    def test_yuans_tokenizer_from_a_deck(self):
        """Pretraining, evaluation and generation with data.tokenizer.type = encdec."""
        files = [f"data.tokenizer.vocab={FILES / 'vocab.txt'}",
                 f"data.tokenizer.model={FILES / 'jieba'}"]
        reference = json.loads((FILES / "reference.json").read_text())
        texts = [case["text"] for case in reference["cases"] if case["text"].strip()]
        corpus, prefix = self.folder / "corpus.jsonl", self.folder / "chinese"
        corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in 40 * texts))
        made = run("trireme-preprocess", "--input", corpus, "--output", prefix, "--tokenizer", "encdec",
                   "--vocab", FILES / "vocab.txt", "--model", FILES / "jieba", "--append-eod")
        self.assertEqual(made.code, FINISHED, made)
        deck = [HERE / "tiny.yaml", f"data.train={prefix}_text_document", "data.tokenizer.type=encdec",
                *files, f"run.device={DEVICE}", f"run.output={self.folder / 'yuan'}", "train.iterations=2"]
        trained = run("trireme-pretrain", *deck)
        self.assertEqual(trained.code, FINISHED, trained)
        line = run("trireme-generate", "--checkpoint", self.folder / "yuan", "--device", DEVICE, "--json",
                   "--prompt", texts[0], "--tokens", 4, "--greedy")
        self.assertEqual(line.code, FINISHED, line)
        self.assertEqual(len(json.loads(line.out)["tokens"]), 4)
        scored = run("trireme-evaluate", *deck, "--input", corpus, "--iterations", 2, "--json")
        self.assertEqual(scored.code, FINISHED, scored)
        self.assertGreater(json.loads(scored.out)["tokens"], 10)

    def test_another_tokenizer_of_the_same_size_is_named(self):
        """A file that is exchanged makes a warning; one that is moved or written in another way does not."""
        words, special = ["the", "a", "licence", "of", "work"], ["<unk>", "<|endoftext|>"]
        vocab, prefix, corpus = (self.folder / name for name in ("vocab.json", "words", "corpus.txt"))
        vocab.write_text(json.dumps({word: i for i, word in enumerate([*words, *special])}))
        corpus.write_text(40 * (" ".join(words) + "\n"))
        made = run("trireme-preprocess", "--input", corpus, "--output", prefix, "--tokenizer", "whitespace",
                   "--vocab", vocab)
        self.assertEqual(made.code, FINISHED, made)
        folder = self.folder / "run"
        deck = [HERE / "tiny.yaml", f"data.train={prefix}_text_document", "data.tokenizer.type=whitespace",
                f"data.tokenizer.vocab={vocab}", f"run.device={DEVICE}", f"run.output={folder}"]
        self.assertEqual(run("trireme-pretrain", *deck, "train.iterations=1").code, FINISHED)

        refused = self.generate("--prompt", "the", "--output", vocab, folder=folder, code=USAGE)
        self.assertIn(f"--output {vocab}: this is an input", refused.err)
        self.assertEqual(len(json.loads(vocab.read_text())), 7)

        def warnings(file):
            replaced = f"data.tokenizer.vocab={file}"
            found = [self.generate("--prompt", "the", "--tokens", 2, "--vocab", file, folder=folder),
                     run("trireme-evaluate", *deck, replaced, "--input", corpus, "--iterations", 1),
                     run("trireme-pretrain", *deck, replaced, "train.iterations=2", "checkpoint.at_end=false")]
            for result in found:
                self.assertEqual(result.code, FINISHED, result)
            said = [result.err.count("was trained with the tokenizer whitespace of 7 ids") for result in found[:2]]
            return said + [found[2].out.count("restart    changed: the tokenizer: whitespace of 7 ids")]

        moved = self.folder / "moved.json"
        moved.write_text(json.dumps(json.loads(vocab.read_text()), indent=2))
        self.assertEqual(warnings(moved), [0, 0, 0])
        exchanged = self.folder / "exchanged.json"
        exchanged.write_text(json.dumps({word: i for i, word in enumerate([*reversed(words), *special])}))
        refused = run("trireme-pretrain", *deck, f"data.tokenizer.vocab={exchanged}")
        self.assertIn("was made with the tokenizer", refused.err)
        prefix.with_name("words_text_document.json").unlink()  # which knows the tokenizer, too
        self.assertEqual(warnings(exchanged), [1, 1, 1])

    def test_beams_on_tensor_ranks(self):
        words = ["--prompt", "the ", "--tokens", 5, "--beams", 3, "--samples", 3]
        alone, ranks = self.lines(*words), self.lines(*words, ranks=2)
        scores = [line["score"] for line in alone]
        self.assertEqual(scores, sorted(scores, reverse=True))
        self.assertEqual([line["tokens"] for line in ranks], [line["tokens"] for line in alone])
        greedy = self.lines("--prompt", "the ", "--tokens", 5, "--greedy", "--logprobs", 0)[0]
        mean = sum(token["logprob"] for token in greedy["logprobs"]) / 5
        self.assertGreaterEqual(scores[0], mean - 1e-6)

    def test_log_probabilities_are_those_of_evaluation(self):
        self.train(self.folder / "padded", "model.vocab=5000")  # most of which the tokenizer lacks
        for folder, *words in ((self.run_folder,), (self.run_folder, "--recompute"), (self.folder / "padded",),
                               (self.folder / "padded", "--recompute")):
            self.compare_with_evaluation(folder, *words)

    def compare_with_evaluation(self, folder, *words):
        greedy = ["--prompt", "the copy", "--tokens", 5, "--greedy", "--logprobs", 2, *words]
        line = self.lines(*greedy, folder=folder)[0]
        self.assertEqual([token["id"] for token in line["logprobs"]], line["tokens"])
        for token in line["logprobs"]:
            self.assertEqual(token["top"][0]["id"], token["id"])
            self.assertGreater(token["top"][0]["logprob"], token["top"][1]["logprob"])
        targets = self.folder / "targets.jsonl"
        targets.write_text(json.dumps({"prompt": "the copy", "target": line["text"]}) + "\n")
        deck = ["model.vocab=5000"] if folder.name == "padded" else []
        found = run("trireme-evaluate", HERE / "tiny.yaml", f"data.train={dataset()}",
                    f"run.device={DEVICE}", *deck, "--checkpoint", folder, "--task", "targets",
                    "--input", targets, "--json")
        mean = -sum(token["logprob"] for token in line["logprobs"]) / 5
        self.assertTrue(math.isclose(json.loads(found.out)["loss"], mean, rel_tol=1e-4), found)
        one_beam = self.lines("--prompt", "the copy", "--tokens", 5, "--beams", 1, folder=folder)[0]
        self.assertTrue(math.isclose(one_beam["score"], -mean, rel_tol=1e-4), one_beam)

    def test_files_stops_and_unconditional(self):
        path = self.folder / "prompts.jsonl"
        path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS))
        out = self.folder / "out.jsonl"
        self.generate("--input", path, "--json", "--greedy", "--tokens", 6, "--output", out)
        found = [json.loads(line) for line in out.read_text().splitlines()]
        self.assertEqual([line["prompt"] for line in found], PROMPTS)
        plain = self.folder / "prompts.txt"
        plain.write_bytes(b"\xef\xbb\xbfthe\r\n\r\n")
        self.assertEqual([line["prompt"] for line in self.lines("--input", plain, "--tokens", 1)], ["the"])
        whole = found[0]["text"]
        stopped = self.lines("--prompt", PROMPTS[0], "--greedy", "--tokens", 6, "--stop", whole[3])[0]
        self.assertEqual((stopped["text"], stopped["stop"]), (whole[:whole.index(whole[3])], "stop"))
        streamed = self.generate("--prompt", PROMPTS[0], "--greedy", "--tokens", 6)
        self.assertEqual(streamed.out, PROMPTS[0] + whole + "\n")
        free = self.lines("--unconditional", "--samples", 3, "--tokens", 4)
        self.assertEqual([line["prompt"] for line in free], [""] * 3)
        self.assertEqual(len({line["text"] for line in free}), 3)

    def test_what_is_wrong_is_said(self):
        refused = lambda code, text, *words, ranks=1: self.assertEqual(
            (result := self.generate(*words, ranks=ranks, code=code)).err.count(text), 1, result)
        refused(USAGE, "--beams 2 gives no more than 2", "--beams", 2, "--samples", 3)
        refused(USAGE, "--min-p 3: expected", "--min-p", 3)
        refused(USAGE, "--logprobs belongs to --json", "--logprobs", 1)
        refused(USAGE, "--tensor 3 x --pipeline 1 is 3 ranks, but 2 were started", "--prompt", "x",
                "--tensor", 3, ranks=2)
        refused(DATA, "the prompt has 40 tokens, but the model's context holds 32", "--prompt",
                "x" * 40)
        refused(DATA, "the KV cache is too small: 3 beams of 5 tokens after 4 tokens", "--prompt", "the ",
                "--tokens", 5, "--beams", 3, "--cache", 64)
        bad = self.folder / "bad.jsonl"
        bad.write_text('{"prompt": "a"}\n{"text": "b"}\n')
        refused(DATA, "bad.jsonl:2: there is no key 'prompt'", "--input", bad)

    def test_interactive(self):
        primary, secondary = pty.openpty()
        program = subprocess.Popen([str(BIN / "trireme-generate"), "--checkpoint",
                                    str(self.run_folder), "--device", DEVICE, "--greedy",
                                    "--tokens", "8"], stdin=secondary, stdout=secondary,
                                   stderr=secondary, env={**os.environ, "TERM": "dumb"},
                                   start_new_session=True)
        os.close(secondary)
        seen = ""

        def wait_for(text):
            nonlocal seen
            deadline = time.monotonic() + PATIENCE
            while text not in seen:
                self.assertLess(time.monotonic(), deadline, seen)
                if select.select([primary], [], [], 1)[0]:
                    seen += os.read(primary, 4096).decode(errors="replace")
            seen = seen[seen.index(text) + len(text):]

        try:
            expected = self.lines("--prompt", "the copy", "--greedy", "--tokens", 8)[0]["text"]
            wait_for("prompt> ")
            os.write(primary, b"the copy\n")
            wait_for("the copy" + expected.split("\n")[0])
            wait_for("prompt> ")
            # An interrupt ends no program.
            program.send_signal(signal.SIGINT)
            time.sleep(0.5)  # at the prompt
            os.write(primary, b"the\n")
            wait_for("the")
            wait_for("prompt> ")
            self.assertIsNone(program.poll())
            # A terminal whose output is not read holds up the program's end. Ctrl-D that arrives before the
            # line editor reads may become text, which Ctrl-U deletes: behind text Ctrl-D ends nothing.
            deadline = time.monotonic() + PATIENCE
            while program.poll() is None and time.monotonic() < deadline:
                with contextlib.suppress(OSError):
                    os.write(primary, b"\x15\x04")
                    if select.select([primary], [], [], 0.5)[0]:
                        os.read(primary, 4096)
            self.assertEqual(program.poll(), FINISHED)
        finally:
            program.kill()
            os.close(primary)


if __name__ == "__main__":
    unittest.main(verbosity=2)
