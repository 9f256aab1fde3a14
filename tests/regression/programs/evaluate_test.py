"""trireme-evaluate on texts, against NumPy: an independent GPT and Megatron-LM's formulas."""

import json
import math
import re
import shutil
import unittest

from runs import (DATA, DECK, DEVICE, FINISHED, HERE, IO, SCRATCH, USAGE, RunTest, dataset, run)

try:
    import h5py
    import numpy as np
except ImportError:
    h5py = None

SEQUENCE, HEADS, EOD = 32, 4, 256
TEXT = """ = Galley = \n \n The galley 's crew ( of 170 rowers ) rowed at 9 @.@ 5 knots ; it was a well @-@ built
 ship , and " the fastest " one . It had 3 @,@ 000 nails , ' bronze ' ones at 20 ° C : N of them broke ! \n
 = = Oars = = \n Each oar had one rower [ thalamites ] ? Three banks { of oars } pulled as one . \n"""


def detokenized(text):
    """Megatron-LM's wikitext_detokenizer, tasks/zeroshot_gpt2/detokenizer.py."""
    text = text.replace("s '", "s'")
    text = re.sub(r"/' [0-9]/", r"/'[0-9]/", text)
    for old, new in ((" @-@ ", "-"), (" @,@ ", ","), (" @.@ ", "."), (" : ", ": "), (" ; ", "; "),
                     (" . ", ". "), (" ! ", "! "), (" ? ", "? "), (" , ", ", ")):
        text = text.replace(old, new)
    text = re.sub(r"\(\s*([^\)]*?)\s*\)", r"(\1)", text)
    text = re.sub(r"\[\s*([^\]]*?)\s*\]", r"[\1]", text)
    text = re.sub(r"{\s*([^}]*?)\s*}", r"{\1}", text)
    text = re.sub(r"\"\s*([^\"]*?)\s*\"", r'"\1"', text)
    text = re.sub(r"'\s*([^']*?)\s*'", r"'\1'", text)
    for old, new in (("= = = =", "===="), ("= = =", "==="), ("= =", "=="),
                     (" " + chr(176) + " ", chr(176)), (" \n", "\n"), ("\n ", "\n"),
                     (" N ", " 1 "), (" 's", "'s")):
        text = text.replace(old, new)
    return text


class Gpt:
    """The logits of a checkpoint's GPT-2, in double precision."""

    def __init__(self, path):
        with h5py.File(path, "r") as file:
            names = []
            file["model"].visititems(
                lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
            self.weights = {name: file["model"][name][()].astype(np.float64) for name in names}
        self.layers = sum(name.endswith("attention/qkv/weight") for name in names)

    def linear(self, name, x):
        return x @ self.weights[f"{name}/weight"].T + self.weights[f"{name}/bias"]

    def norm(self, name, x):
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)
        return x * self.weights[f"{name}/weight"] + self.weights[f"{name}/bias"]

    def attention(self, name, x):
        q, k, v = (part.reshape(len(x), HEADS, -1).transpose(1, 0, 2)
                   for part in np.split(self.linear(f"{name}/qkv", x), 3, axis=1))
        scores = q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1])
        scores[:, ~np.tri(len(x), dtype=bool)] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = weights / weights.sum(-1, keepdims=True) @ v
        return self.linear(f"{name}/projection", mixed.transpose(1, 0, 2).reshape(len(x), -1))

    def log_probabilities(self, ids):
        x = self.weights["embedding/word"][ids] + self.weights["embedding/position"][:len(ids)]
        for layer in (f"layers/{i}" for i in range(self.layers)):
            x = x + self.attention(f"{layer}/attention", self.norm(f"{layer}/norm1", x))
            up = self.linear(f"{layer}/mlp/up", self.norm(f"{layer}/norm2", x))
            up = 0.5 * up * (1 + np.tanh(math.sqrt(2 / math.pi) * (up + 0.044715 * up ** 3)))
            x = x + self.linear(f"{layer}/mlp/down", up)
        logits = self.norm("final_norm", x) @ self.weights["embedding/word"].T
        logits = logits - logits.max(-1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(-1, keepdims=True))

    def window_loss(self, ids, step):
        """Megatron-LM's overlapping windows, its empty ones at the end included: summed loss and
        number of labels."""
        windows = max(math.ceil(max(len(ids) - 1 - step, 0) / step) + 1, 1)
        loss, labels = 0.0, 0
        for k in range(windows):
            part = ids[k * step:k * step + SEQUENCE + 1]
            found = self.log_probabilities(part[:-1]) if len(part) > 1 else []
            first = 0 if k == 0 or step == SEQUENCE else SEQUENCE - step
            for i in range(first, len(part) - 1):
                loss -= found[i, part[i + 1]]
                labels += 1
        return loss, labels


@unittest.skipUnless(h5py, "python3-h5py is not installed")
class Texts(RunTest):
    @classmethod
    def setUpClass(cls):
        """One run for all tests, with two checkpoints; each test has its folder for files."""
        cls.run_folder = SCRATCH / cls.__name__ / "trained"
        shutil.rmtree(cls.run_folder, ignore_errors=True)
        result = run("trireme-pretrain", HERE / "tiny.yaml", f"data.train={dataset()}",
                     f"run.output={cls.run_folder}", f"run.device={DEVICE}", "checkpoint.every=10")
        if result.code != FINISHED:
            raise RuntimeError(str(result))
        cls.gpt = Gpt(cls.run_folder / "checkpoints/step-00000020.h5")

    def setUp(self):
        super().setUp()
        (self.folder / "run").symlink_to(self.run_folder)

    def check(self, expected, *words, layouts=((1,), (2,), (2, "parallel.tensor=2"))):
        """On every layout, trireme-evaluate finds `expected`."""
        for ranks, *layout in layouts:
            found = self.evaluate("run", *words, *layout, ranks=ranks)
            for key, value in expected.items():
                if isinstance(value, float):
                    self.assertTrue(math.isclose(found[key], value, rel_tol=1e-5),
                                    (key, value, found, ranks, layout))
                else:
                    self.assertEqual(found[key], value, (found, ranks, layout))

    def test_wikitext(self):
        path = self.folder / "wiki.test.tokens"
        path.write_text(TEXT * 2, newline="")
        ids = list(detokenized(TEXT * 2).encode())
        words = len((TEXT * 2).strip().split(" "))
        for step in (8, SEQUENCE):
            loss, labels = self.gpt.window_loss(ids, step)
            self.assertEqual(labels, len(ids) - 1)
            ratio = (len(ids) - 1) / (words - 1)
            self.check({"tokens": labels, "words": words, "token_ratio": ratio,
                        "loss": loss / labels, "perplexity": math.exp(loss / labels),
                        "adjusted_perplexity": math.exp(min(20, loss / labels * ratio))},
                       "--task", "wikitext", "--input", path, "--overlapping-eval", step)

    def test_perplexity_of_a_file(self):
        path = self.folder / "texts.jsonl"
        texts = ["Licensed under the Apache License", "", "You may not use this file. " * 4]
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        ids = [token for text in texts for token in [*text.encode(), EOD]]
        loss, labels = self.gpt.window_loss(ids, SEQUENCE)
        self.check({"tokens": labels, "loss": loss / labels}, "--input", path,
                   layouts=((1, "batch.micro=3", "batch.global=3"), (3,)))
        # Texts need no dataset: a deck without one will do.
        deck = self.folder / "no-data.yaml"
        deck.write_text(re.sub(r"  split: .*\n", "", (HERE / "tiny.yaml").read_text()))
        result = run("trireme-evaluate", deck, "run.device=host", "--checkpoint",
                     self.folder / "run", "--input", path, "--json")
        self.assertEqual(result.code, FINISHED, result)
        self.assertEqual(json.loads(result.out)["tokens"], labels)

    def test_lambada(self):
        texts = ["Licensed under the Apache License", "the copyright owner or by an entity",
                 "Work or Derivative Works thereof", "grant of the terms and conditions of the ",
                 "a long context that is cut at its beginning, and then the end of the"]
        path = self.folder / "lambada.jsonl"
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        for strict in (False, True):
            correct, loss, labels = 0, 0.0, 0
            for text in texts:
                context, target = text[:-1], text[-1]
                if strict:
                    target = text.split()[-1]
                    context, target = text[:text.rfind(target)].strip(), " " + target
                ids = [*context.encode(), *target.encode()][-(SEQUENCE + 1):]
                first = len(ids) - len(target)
                found = self.gpt.log_probabilities(ids[:-1])
                correct += all(found[i - 1].argmax() == ids[i] for i in range(first, len(ids)))
                loss -= sum(found[i - 1, ids[i]] for i in range(first, len(ids)))
                labels += len(target)
            if not strict:
                self.assertGreater(correct, 0, "the test shows nothing")
            self.check({"correct": correct, "examples": len(texts), "tokens": labels,
                        "accuracy": correct / len(texts), "loss": loss / labels},
                       "--task", "lambada", "--input", path,
                       *(["--strict-lambada"] if strict else []),
                       layouts=((1, "batch.micro=2", "batch.global=2"), (2,), (2, "parallel.tensor=2"),
                                (2, "parallel.pipeline=2")))

    def log_likelihood(self, context, continuation):
        """The harness's loglikelihood() of one request, with a tokenizer of bytes."""
        spaces = len(context) - len(context.rstrip())
        context, continuation = (context.rstrip(), context[len(context) - spaces:] + continuation)
        ids = [*context.encode()] or [EOD]
        target = [*continuation.encode()]
        ids = (ids + target)[-(SEQUENCE + 1):]
        found = self.gpt.log_probabilities(ids[:-1])
        return sum(found[i - 1, ids[i]] for i in range(len(ids) - len(target), len(ids)))

    def judged(self, questions):
        """Accuracies and their standard errors as the harness computes them: questions are lists of
        (context, continuation, choice), and the index of the answer."""
        raw, normalised = [], []
        for choices, answer in questions:
            scores = np.array([self.log_likelihood(context, text) for context, text, _ in choices])
            lengths = np.array([float(len(choice)) for _, _, choice in choices])
            raw.append(float(np.argmax(scores) == answer))
            normalised.append(float(np.argmax(scores / lengths) == answer))
        error = lambda values: np.std(values, ddof=1) / math.sqrt(len(values))
        return {"accuracy": float(np.mean(raw)), "accuracy_stderr": float(error(raw)),
                "accuracy_norm": float(np.mean(normalised)),
                "accuracy_norm_stderr": float(error(normalised)), "examples": len(questions)}

    def write_lines(self, name, lines):
        path = self.folder / name
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    def questions(self):
        """Parts of the licence, with choices that differ in length and likelihood."""
        words = (HERE.parents[1] / "LICENSE").read_text().split()
        rng = np.random.default_rng(5)
        pick = lambda count: " ".join(words[i] for i in rng.integers(0, len(words), count))
        return [{"question": pick(2), "choices": [pick(1 + i % 3), pick(2), pick(1)],
                 "answer": int(rng.integers(0, 3))} for i in range(12)]

    def test_multiple_choice(self):
        questions = self.questions()
        layouts = ((1, "batch.micro=3", "batch.global=3"), (2,), (2, "parallel.tensor=2"),
                   (2, "parallel.pipeline=2"))
        after = lambda context, choices: [(context, " " + choice, choice) for choice in choices]
        arc = [{"question": {"stem": q["question"], "choices": [
            {"text": choice, "label": "ABC"[i]} for i, choice in enumerate(q["choices"])]},
                "answerKey": "ABC"[q["answer"]]} for q in questions]
        expected = self.judged([(after(f"Question: {q['question']}\nAnswer:", q["choices"]),
                                 q["answer"]) for q in questions])
        self.assertNotEqual(expected["accuracy"], expected["accuracy_norm"], "the test shows little")
        self.check(expected, "--task", "arc", "--input", self.write_lines("arc.jsonl", arc),
                   layouts=layouts)
        one = ((2, "parallel.tensor=2"),)
        hellaswag = [{"activity_label": "Roofs", "ctx_a": q["question"], "ctx_b": "the [x] MAN",
                      "endings": q["choices"], "label": q["answer"]} for q in questions]
        expected = self.judged([(after(f"Roofs: {q['question']} The man", q["choices"]), q["answer"])
                                for q in questions])
        self.check(expected, "--task", "hellaswag", "--input",
                   self.write_lines("hellaswag.jsonl", hellaswag), layouts=one)
        piqa = [{"goal": q["question"], "sol1": q["choices"][0], "sol2": q["choices"][1],
                 "label": q["answer"] % 2} for q in questions]
        expected = self.judged([(after(f"Question: {q['question']}\nAnswer:", q["choices"][:2]),
                                 q["answer"] % 2) for q in questions])
        self.check(expected, "--task", "piqa", "--input", self.write_lines("piqa.jsonl", piqa),
                   layouts=one)
        winogrande = [{"sentence": f"{q['question']} _ {q['choices'][2]}.", "option1":
                       q["choices"][0], "option2": q["choices"][1], "answer": str(1 + q["answer"] % 2)}
                      for q in questions]
        expected = self.judged(
            [([(f"{q['question']} {choice}", f" {q['choices'][2]}.", f"{q['choices'][2]}.")
               for choice in q["choices"][:2]], q["answer"] % 2) for q in questions])
        self.check(expected, "--task", "winogrande", "--input",
                   self.write_lines("winogrande.jsonl", winogrande), layouts=one)
        blimp = [{"sentence_good": q["choices"][0], "sentence_bad": q["choices"][1]}
                 for q in questions]
        expected = self.judged([(after("", q["choices"][:2]), 0) for q in questions])
        self.check(expected, "--task", "blimp", "--input", self.write_lines("blimp.jsonl", blimp),
                   layouts=one)
        own = [{"prompt": q["question"] + " ", "choices": q["choices"], "answer": q["answer"]}
               for q in questions]
        expected = self.judged([([(q["question"] + " ", choice, choice) for choice in q["choices"]],
                                 q["answer"]) for q in questions[:6]])
        self.check(expected, "--task", "choices", "--input", self.write_lines("own.jsonl", own),
                   "--iterations", 3, "--batch", 2, layouts=((2,),))

    def test_prompts_and_targets(self):
        pairs = [("Licensed under the Apac", "he License"), ("the copyr", "ight"), ("Work o", "r"),
                 ("of the terms", " and conditions"), ("", "the")]
        lines = [{"prompt": prompt, "target": target} for prompt, target in pairs]
        loss = -sum(self.log_likelihood(*pair) for pair in pairs)
        labels = sum(len(target) for _, target in pairs)
        correct = 0
        for prompt, target in pairs:
            ids = [*prompt.encode()] or [EOD]
            ids, first = [*ids, *target.encode()], len(ids)
            found = self.gpt.log_probabilities(ids[:-1])
            correct += all(found[i - 1].argmax() == ids[i] for i in range(first, len(ids)))
        self.check({"loss": loss / labels, "tokens": labels, "correct": correct,
                    "accuracy": correct / len(pairs)}, "--task", "targets", "--input",
                   self.write_lines("targets.jsonl", lines), layouts=((2,),))

    def test_checkpoints_make_a_table(self):
        path = self.write_lines("targets.jsonl", [{"prompt": "the copyr", "target": "ight"}])
        words = ("--task", "targets", "--input", path)
        found = self.evaluate("run", *words, "--all-checkpoints", ranks=2)["results"]
        self.assertEqual([result["iteration"] for result in found], [10, 20])
        self.assertLess(found[1]["loss"], found[0]["loss"])
        first = self.run_folder / "checkpoints/step-00000010.h5"
        alone = self.evaluate("run", *words, "--checkpoint", first)
        self.assertTrue(math.isclose(alone["loss"], found[0]["loss"], rel_tol=1e-5))
        table = run("trireme-evaluate", *self.deck_words("run", *words, "--checkpoint", first,
                                                         "--checkpoint", self.run_folder))
        self.assertEqual([line.split()[1] for line in table.out.splitlines()],
                         ["iteration", "10", "20"], table)
        curve = self.folder / "curve.svg"
        self.evaluate("run", *words, "--all-checkpoints", "--plot", curve)
        drawn = curve.read_text()
        for name in ("loss", "accuracy", "iterations"):
            self.assertIn(f">{name}<", drawn)
        refused = run("trireme-evaluate", *self.deck_words("run", *words, "--plot", curve))
        self.assertEqual(refused.code, USAGE, refused)
        line = run("trireme-evaluate", *self.deck_words("run", *words)).out.splitlines()[-1]
        self.assertTrue(line.startswith(" targets at iteration 20 | accuracy: "), line)

    def test_a_limit_scores_the_first_batches(self):
        whole = self.evaluate("run")
        limits = [self.evaluate("run", "--iterations", 2, "--batch", 3, *words, ranks=ranks)
                  for ranks, *words in ((1,), (3,), (2, "parallel.pipeline=2"))]
        self.assertLess(limits[0]["tokens"], whole["tokens"])
        self.assertEqual(limits[0]["tokens"], 2 * 3 * SEQUENCE)
        for found in limits[1:]:
            self.assertEqual(found["tokens"], limits[0]["tokens"])
            self.assertTrue(math.isclose(found["loss"], limits[0]["loss"], rel_tol=1e-5))

    def test_tasks_during_training(self):
        questions = self.questions()
        own = self.write_lines("own.jsonl", [
            {"prompt": q["question"], "choices": q["choices"], "answer": q["answer"]}
            for q in questions])
        targets = self.write_lines("targets.jsonl", [{"prompt": "the copyr", "target": "ight"}])
        tasks = (f"evaluate.tasks=[{{name: choices, file: {own}, every: 5}}, "
                 f"{{name: targets, file: {targets}, every: 10}}]")
        words = (tasks, "checkpoint.every=10", "train.exit_interval=10",
                 "log.tensorboard.enable=true")
        name = "training"
        ranks = {"ranks": 4}
        layout = ("parallel.tensor=2", "parallel.pipeline=2")
        self.pretrain(name, *words, *layout, **ranks)
        first = self.events(name, "task")
        self.assertEqual([(event["iteration"], event["task"]) for event in first],
                         [(5, "choices"), (10, "choices"), (10, "targets")])
        # A kill after iteration 15 would leave such lines: the restart writes them again.
        stale = dict(first[0], iteration=15)
        with open(self.folder / name / "metrics.jsonl", "a") as metrics:
            metrics.write(json.dumps(stale) + "\n")
        self.pretrain(name, *words, "parallel.data=2", ranks=2)
        events = self.events(name, "task")
        self.assertEqual(events[:3], first)
        self.assertEqual([(event["iteration"], event["task"]) for event in events[3:]],
                         [(15, "choices"), (20, "choices"), (20, "targets")])
        for task, path in (("choices", own), ("targets", targets)):
            alone = self.evaluate(name, "--task", task, "--input", path)
            last = [event for event in events if event["task"] == task][-1]
            for key, value in alone.items():
                if key in last and key not in ("task", "iteration", "kind"):
                    self.assertTrue(math.isclose(last[key], value, rel_tol=1e-5), (key, last, alone))
        console = (self.folder / name / "console.log").read_text()
        self.assertEqual(console.count(" task targets at iteration 20 | accuracy: "), 1)
        curves = b"".join(path.read_bytes()
                          for path in (self.folder / name / "tensorboard").iterdir())
        self.assertIn(b"tasks/choices/accuracy_norm", curves)

    def test_wrong_tasks_are_found_by_check(self):
        check = lambda *words: run("trireme-pretrain", *self.deck_words("none", "--check", *words))
        result = check("evaluate.tasks=[{name: lambda, file: x, every: 5}]")
        self.assertEqual(result.code, DECK, result)
        self.assertIn("did you mean 'lambada'?", result.err)
        result = check("evaluate.tasks=[{name: lambada, file: x}]")
        self.assertEqual(result.code, DECK, result)
        self.assertIn("'lambada' is never evaluated: give it `every`", result.err)
        result = check("evaluate.tasks=[{name: lambada, file: absent.jsonl, every: 5}]")
        self.assertEqual(result.code, IO, result)
        self.assertIn("absent.jsonl", result.err)

    def test_check_takes_the_layout_of_the_evaluation(self):
        path = self.folder / "texts.jsonl"
        path.write_text(json.dumps({"text": "Licensed under the Apache License"}) + "\n")
        for option in ("--check", "--plan"):
            result = run("trireme-evaluate", *self.deck_words("run", option, "--ranks", 3, "--input", path))
            self.assertEqual(result.code, FINISHED, f"batch.global is no multiple of 3 ranks' micro-batches: {result}")
        self.assertIn("tensor 1 x pipeline 1 x data 3", result.out)

    def refused(self, code, text, *words):
        result = run("trireme-evaluate", *self.deck_words("run", *words))
        self.assertEqual(result.code, code, result)
        self.assertEqual(result.err.count(text), 1, result)

    def test_what_is_wrong_is_said(self):
        path = self.folder / "bad.jsonl"
        path.write_text('{"text": "two words"}\n{"text": " "}\n')
        lambada = ("--task", "lambada", "--input", path, "--strict-lambada")
        self.refused(DATA, "bad.jsonl:2: the text has no last word to predict", *lambada)
        for name, task, said in (("empty.txt", "perplexity", "empty.txt: the text has 0 tokens: nothing to score"),
                                 ("empty.txt", "wikitext", "empty.txt: the text has 0 tokens"),
                                 ("empty.jsonl", "lambada", "empty.jsonl: there is no item to score"),
                                 ("empty.jsonl", "choices", "empty.jsonl: there is no example in it")):
            (self.folder / name).write_text("")
            self.refused(DATA, said, "--task", task, "--input", self.folder / name)
        self.refused(IO, "No such file", "--input", self.folder / "absent.jsonl")
        self.refused(IO, "No such file", "--input", self.folder / "absent.jsonl", "--check")
        (self.folder / "plain").write_text("no JSON\n")
        self.refused(DATA, "plain:1: not a JSON object; plain text is read from a file whose name ends in .txt",
                     "--input", self.folder / "plain")
        self.refused(USAGE, "--memory belongs to --plan and --check: a run", "--memory", "1GB")
        result = run("trireme-evaluate", *self.deck_words("run", "--task", "lambada", "--input", "-"), ranks=2)
        self.assertEqual(result.code, USAGE, result)
        self.assertIn("an evaluation on several ranks reads the input more than once: standard input", result.err)
        self.refused(USAGE, "--task lambada needs --input", "--task", "lambada")
        self.refused(USAGE, "--input and --split: give one of them", "--input", path, "--split", "test")
        self.refused(USAGE, "--overlapping-eval 33: expected 1 to model.sequence = 32", "--task",
                     "wikitext", "--input", path, "--overlapping-eval", 33)
        self.refused(USAGE, "--strict-lambada belongs to --task lambada", "--strict-lambada")
        self.refused(DECK, "--input needs data.tokenizer", "--input", path, "model.vocab=257",
                     "data.tokenizer.type=")


if __name__ == "__main__":
    unittest.main(verbosity=2)
