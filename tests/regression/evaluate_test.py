"""trireme-evaluate on texts, against NumPy: a GPT of its own and Megatron-LM's formulas."""

import json
import math
import re
import unittest

from runs import DECK, FINISHED, HERE, IO, DATA, USAGE, RunTest, run

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
    def setUp(self):
        super().setUp()
        self.pretrain("run")
        self.gpt = Gpt(self.latest("run"))

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

    def refused(self, code, text, *words):
        result = run("trireme-evaluate", *self.deck_words("run", *words))
        self.assertEqual(result.code, code, result)
        self.assertEqual(result.err.count(text), 1, result)

    def test_what_is_wrong_is_said(self):
        path = self.folder / "bad.jsonl"
        path.write_text('{"text": "two words"}\n{"text": " "}\n')
        lambada = ("--task", "lambada", "--input", path, "--strict-lambada")
        self.refused(DATA, "bad.jsonl:2: the text has no last word to predict", *lambada)
        self.refused(IO, "No such file", "--input", self.folder / "absent.jsonl")
        self.refused(USAGE, "--task lambada needs --input", "--task", "lambada")
        self.refused(USAGE, "--input and --split: give one of them", "--input", path, "--split", "test")
        self.refused(USAGE, "--overlapping-eval 33: expected 1 to model.sequence = 32", "--task",
                     "wikitext", "--input", path, "--overlapping-eval", 33)
        self.refused(USAGE, "--strict-lambada belongs to --task lambada", "--strict-lambada")
        self.refused(DECK, "--input needs data.tokenizer", "--input", path, "model.vocab=257",
                     "data.tokenizer.type=")


if __name__ == "__main__":
    unittest.main(verbosity=2)
