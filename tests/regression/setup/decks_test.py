"""The decks of inputs/: every value is commented, each deck can be planned for its ranks on any machine, and
those of the recipes train on the host, scaled down to a few ranks but with their own features."""

import functools
import os
import random
import re
import unittest

from runs import FINISHED, HERE, SCRATCH, RunTest, run

ROOT = HERE.parents[1]
DECKS = sorted(path.stem for path in (ROOT / "inputs").glob("*.yaml"))

# What the decks of the recipes are for: their ranks, and the stages of each pipeline.
RECIPES = {
    "gpt2-345m-2gpu": (2, 1),
    "gpt2-345m-tp4": (4, 1),
    "gpt2-bigscience-10k": (2, 1),
    "gpt2-345m": (1, 1),
    "gpt2-8.3b-512gpu": (512, 1),
    "yuan-4.7b-8gpu": (8, 1),
    "gpt2-small": (4, 2),
    "gpt2-xl-a10x32": (32, 8),
    "dlperf-1536x16": (1, 1),
}

# What the recipes say, where a deck of them might say something else.
VALUES = {
    "gpt2-345m-2gpu": {"train.iterations": "500", "data.split": "900,50,50", "parallel.zero": "0",
                       "evaluate.every": "1000 iterations", "checkpoint.every": "10000 iterations",
                       "log.tensorboard.enable": "false"},
    "gpt2-345m-tp4": {"train.iterations": "500", "data.split": "900,50,50", "parallel.zero": "0",
                      "batch.global": "9", "evaluate.every": "1000 iterations",
                      "checkpoint.every": "10 iterations", "checkpoint.keep": "", "log.every": "10",
                      "log.timers": "false"},
    "gpt2-bigscience-10k": {"train.samples": "10000", "train.exit_interval": "100 iterations",
                            "train.kill_switch": "/tmp/kill-switch", "train.exit_duration": "",
                            "train.skip": "", "checkpoint.every": "50 iterations",
                            "checkpoint.keep": "", "evaluate.every": "100 iterations",
                            "log.timers": "true", "log.tensorboard.flush_every": "5"},
    "gpt2-small": {"batch.global": "32", "train.iterations": "50"},
    "gpt2-xl-a10x32": {"batch.global": "64", "parallel.partition": "0-11-8-8-8-8-5-0"},
}

# Parameters of the recipes' models, in millions, and the iterations of their runs.
TOTALS = {
    "gpt2-8.3b-512gpu": ("8314.14", 300_000),
    "yuan-4.7b-8gpu": ("4701.26", 15_258),
    "gpt2-xl-a10x32": ("1557.61", 50),
    "gpt2-345m": ("354.82", 320_000),
    "gpt2-bigscience-10k": (None, 748),  # 187 of them while the batch grows
}

# What makes a recipe small: heads as narrow as can be, and lengths that a few iterations see something of.
SEQUENCE = ["model.sequence=32", "model.positions=32"]
BYTES = ["data.tokenizer={type: bytes}", "data.tokenizer.vocab=", "data.tokenizer.merges="]
RATE = ["schedule.peak=1e-2", "schedule.warmup=2 iterations", "schedule.decay=40 iterations"]
SCALE = ["precision.loss_scale.initial=1024"]  # from 2^32 all of ten iterations would overflow
SHORT = [*SEQUENCE, *SCALE, "evaluate.iterations=1", "log.every=1"]


def setUpModule():
    os.chdir(ROOT)  # from where the decks name their tokenizers


@functools.lru_cache(maxsize=None)
def corpus():
    """The prefix of a dataset of bytes: so many documents that a thousandth of them is a test part."""
    prefix = SCRATCH / "sentences"
    SCRATCH.mkdir(parents=True, exist_ok=True)
    words = (ROOT / "LICENSE").read_text().split()
    draw = random.Random(1)
    text = SCRATCH / "sentences.txt"
    text.write_text("".join(" ".join(draw.choices(words, k=12)) + "\n" for _ in range(3000)))
    made = run("trireme-preprocess", "--input", text, "--output", prefix, "--tokenizer", "bytes",
               "--append-eod")
    if made.code != FINISHED:
        raise RuntimeError(str(made))
    return f"{prefix}_text_document"


class Decks(unittest.TestCase):
    def test_every_recipe_has_its_deck(self):
        self.assertLessEqual(set(RECIPES), set(DECKS))

    def test_every_value_is_commented(self):
        """Beside it, or above a group of lines."""
        for deck in DECKS:
            lines = (ROOT / f"inputs/{deck}.yaml").read_text().split("\n")
            self.assertTrue(lines[0].startswith("# "), f"{deck}: what is it for?")
            commented = False
            for line in lines:
                words = line.strip()
                if words.startswith("#"):
                    commented = True
                elif not words or "#" in words:
                    commented = False
                elif not words.endswith(":"):
                    self.assertTrue(commented, f"{deck}.yaml: {line}")

    def test_values_are_the_recipes(self):
        for deck, values in VALUES.items():
            for key, value in values.items():
                with self.subTest(deck, key=key):
                    found = run("trireme-pretrain", f"inputs/{deck}.yaml", "--print-value", key)
                    self.assertEqual((found.code, found.out), (FINISHED, value + "\n"), found)

    def plan(self, deck, *words):
        result = run("trireme-pretrain", f"inputs/{deck}.yaml", "--plan", *words)
        self.assertEqual(result.code, FINISHED, result)
        return result.out

    def check_plan(self, text, stages):
        """Its bubble, and each stage's memory by purpose, with that on the host where there is some."""
        self.assertRegex(text, r"pipeline bubble [0-9]+\.[0-9] %")
        size = r"\s+([0-9]+(?:\.[0-9])? (?:B|KiB|MiB|GiB))"
        rows = re.findall(rf"^\s+[0-9]+\s+\S+\s+[0-9]+\s+[0-9]+{size * 8}(?:{size})?$", text, re.MULTILINE)
        self.assertEqual(len(rows), stages, text)

    def test_recipes_plan_for_their_ranks(self):
        for deck, (ranks, stages) in RECIPES.items():
            for device in ["host", "cuda"]:
                with self.subTest(deck, device=device):
                    text = self.plan(deck, "--ranks", ranks, f"run.device={device}")
                    self.assertTrue(text.startswith(f"ranks      {ranks} = "), text)
                    self.check_plan(text, stages)

    def test_parameters_and_iterations_are_the_recipes(self):
        for deck, (millions, iterations) in TOTALS.items():
            with self.subTest(deck):
                text = self.plan(deck, "--ranks", RECIPES[deck][0], "run.device=cuda")
                found = re.search(r"^parameters ([0-9.]+) M, ([0-9]+) iterations", text, re.MULTILINE)
                self.assertEqual(int(found.group(2)), iterations)
                self.assertIn(millions, (None, found.group(1)))

    def test_stages_of_the_uneven_pipeline(self):
        """As FASOP's modified Megatron-LM prints them: the vocabulary padded to 50,304, five layers."""
        text = self.plan("gpt2-xl-a10x32", "--ranks", 32, "run.device=cuda")
        stages = re.findall(r"^ +[0-9]+ +[-0-9]+ +([0-9]+) ", text, re.MULTILINE)
        self.assertEqual((stages[0], stages[6]), ("82124800", "153704000"))

    def test_memory_is_what_the_uneven_pipeline_printed_or_less(self):
        """Its log: ranks 0 and 24 (stages 0 and 6) allocated 1570.77 and 3035.10 MiB, the latter 3869.26 at its peak.
        20 bytes a parameter of Megatron-LM's fp16 optimizer are most of that; Trireme has no 16-bit gradients."""
        text = self.plan("gpt2-xl-a10x32", "--ranks", 32, "run.device=cuda")
        units = {"B": 2**-20, "KiB": 2**-10, "MiB": 1, "GiB": 1024}
        stages = [[float(value) * units[unit] for value, unit in re.findall(r"([0-9.]+) ([KMG]?i?B)\b", line)]
                  for line in re.findall(r"^ +[0-9]+ +[-0-9]+ +[0-9]+ .*$", text, re.MULTILINE)]
        for stage, parameters, printed, peak in [(0, 82124800, 1570.77, None), (6, 153704000, 3035.10, 3869.26)]:
            weights, gradients, optimizer, activations, workspace, transfers = stages[stage][:6]
            states = weights + gradients + optimizer
            self.assertLess(20 * parameters / 2**20, printed)
            self.assertAlmostEqual(states, 18 * parameters / 2**20, delta=0.02 * states)
            self.assertLess(states + activations + workspace + transfers, peak or printed)

    def test_the_other_decks_plan_for_the_fewest_ranks(self):
        stages = {"quickstart": 2, "gpt2-345m-pipeline": 4, "gpt2-1.5b": 4}
        for deck in sorted(set(DECKS) - set(RECIPES)):
            with self.subTest(deck):
                # The quickstart script trains the tokenizer of some of them.
                trained = "sentencepiece" in (ROOT / f"inputs/{deck}.yaml").read_text()
                other = ["data.tokenizer={type: bytes}", "data.tokenizer.model="] if trained else []
                self.check_plan(self.plan(deck, *other), stages.get(deck, 1))

    def test_what_the_comments_of_decks_suggest(self):
        for deck, ranks, *words in [
            ("gpt2-345m-tp4", 8, "batch.global=18"),
            ("gpt2-345m", 64, "batch.global=512"),
            ("yuan-4.7b-8gpu", 8, "parallel.tensor=4"),
            ("gpt2-small", 4, "parallel.pipeline=4", "parallel.partition=7-7-6-4"),
            ("dlperf-1536x16", 8, "batch.global=16"),
            ("dlperf-1536x16", 8, "parallel.tensor=4", "batch.micro=8", "batch.global=16"),
            ("dlperf-1536x16", 32, "parallel.pipeline=4", "batch.global=512"),
            ("dlperf-1536x16", 1, "model={layers: 12, hidden: 768, heads: 12}", "batch.micro=8",
             "batch.global=8"),
            ("dlperf-1536x16", 32, "model={layers: 24, hidden: 2304, heads: 24}",
             "parallel.tensor=8", "batch.micro=8", "batch.global=32"),
        ]:
            with self.subTest(deck, words=words):
                text = self.plan(deck, "--ranks", ranks, *words)
                self.assertTrue(text.startswith(f"ranks      {ranks} = "), text)


class ScaledDown(RunTest):
    def train(self, deck, ranks, *words, data=None):
        """Trains `deck` on `ranks` host ranks with overrides."""
        words = [*SHORT, *(data or [f"data.train={corpus()}", *BYTES]), *words]
        command = [f"inputs/{deck}.yaml", f"run.output={self.folder / 'run'}", "run.device=host",
                   *words]
        result = run("trireme-pretrain", *command, ranks=ranks)
        self.assertEqual(result.code, FINISHED, result)
        return result

    def tearDown(self):
        """Whatever was trained: every update was applied, and the loss has fallen."""
        losses = self.losses("run")
        self.assertGreaterEqual(len(losses), 10)
        self.assertLess(losses[-1], 0.95 * losses[0])
        self.assertEqual(sum(event["skipped"] for event in self.events("run", "train")), 0)

    def splits(self):
        """The parts that were evaluated."""
        return [event["split"] for event in self.events("run", "eval")]

    def test_gpt2_345m_2gpu(self):
        self.train("gpt2-345m-2gpu", 2, *RATE, "model.layers=4", "model.hidden=64",
                   "train.iterations=10")
        self.assertEqual(self.splits(), ["valid", "test"])

    def test_gpt2_345m_tp4(self):
        self.train("gpt2-345m-tp4", 4, *RATE, "model.layers=4", "model.hidden=64",
                   "train.iterations=10")

    def test_gpt2_bigscience_10k(self):
        """Batches of 2, 4, 6 ..., a stop after five iterations, and the rest of the run."""
        words = ["schedule.peak=4e-2", "schedule.decay=1000 samples", "batch.rampup.samples=40",
                 "train.samples=150", "train.exit_interval=5 iterations", "train.skip=[3-4]"]
        first = self.train("gpt2-bigscience-10k", 2, *words)
        self.assertIn("stopped after iteration 5: train.exit_interval is reached", first.out)
        while self.stop_event("run")["reason"] != "finished":
            self.train("gpt2-bigscience-10k", 2, *words)
        sizes = [event["global_batch"] for event in self.events("run", "train")]
        self.assertEqual((sizes[0], sizes[-1]), (2, 16))
        tags = (self.folder / "run/tensorboard").glob("events.out.tfevents.*")
        self.assertIn(b"batch-size/batch-size", b"".join(path.read_bytes() for path in tags))

    def test_gpt2_345m(self):
        self.train("gpt2-345m", 1, *RATE, "model.layers=4", "model.hidden=64",
                   "train.iterations=10", data=[f"data.corpora={{wikipedia: {corpus()}}}", *BYTES])

    def test_gpt2_8_3b(self):
        names = ["wikipedia", "cc-stories", "realnews", "openwebtext"]
        corpora = ", ".join(f"{name}: {corpus()}" for name in names)
        self.train("gpt2-8.3b-512gpu", 8, *RATE, "model.layers=2", "model.hidden=96",
                   "parallel.tensor=4", "parallel.data=2", "batch={micro: 2, global: 8}",
                   "train.iterations=10", data=[f"data.corpora={{{corpora}}}", *BYTES])

    def test_yuan_4_7b(self):
        """Its alternative layout, too, which resumes where the first one stopped."""
        for tensor, samples in [(8, 40), (4, 80)]:
            self.train("yuan-4.7b-8gpu", 8, f"parallel.tensor={tensor}", "model.layers=2",
                       "model.hidden=96", "model.vocab=257", "batch={micro: 1, global: 8}",
                       "schedule.minimum=2e-3", "schedule.range_test.step=10 iterations",
                       f"train.samples={samples}", data=[f"data.train={corpus()}"])
        rates = [event["learning_rate"] for event in self.events("run", "train")]
        for iteration, rate in enumerate(rates, 1):  # printed is the next iteration's
            self.assertAlmostEqual(rate, 2e-3 * (1 + 5 * iteration / 10))

    def test_gpt2_small(self):
        self.train("gpt2-small", 4, *RATE, "model.layers=5", "model.hidden=64",
                   "parallel.partition=3-2", "batch.global=8", "train.iterations=10")
        self.assertEqual(self.splits(), [])

    def test_gpt2_xl_a10x32(self):
        """Heads of five columns, as little a power of two as a hundred."""
        self.train("gpt2-xl-a10x32", 8, *RATE, "model.layers=6", "model.hidden=80",
                   "parallel.partition=0-1-1-1-1-1-1-0", "parallel.data=1", "batch.global=8",
                   "train.iterations=10")
        self.assertEqual(self.events("run", "start")[0]["layout"]["partition"],
                         "0-1-1-1-1-1-1-0")

    def test_dlperf_1536x16(self):
        """Its case DP_PP."""
        self.train("dlperf-1536x16", 8, *RATE, "model.layers=4", "model.hidden=64",
                   "model.vocab=257", "parallel.pipeline=4", "batch.global=16",
                   "train.iterations=10")


if __name__ == "__main__":
    unittest.main(verbosity=2)
