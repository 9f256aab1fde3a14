"""Thirty decks drawn at random, of small models on two to four ranks: each trains three steps, continues on another
layout for two more, and every loss is that of the same model on one rank in fp32, within the tolerance of its
precision.

TRIREME_RANDOM_SEED draws others, TRIREME_RANDOM_DECKS more or fewer.
"""

import math
import os
import random
import unittest

from runs import RunTest

SEED = int(os.environ.get("TRIREME_RANDOM_SEED", 2019))
DECKS = int(os.environ.get("TRIREME_RANDOM_DECKS", 30))
TOLERANCE = {"fp32": 2e-6, "bf16": 2e-3, "fp16": 1e-3}

# The architecture: of each row of its family a deck has one value.
GPT = [
    ["model.family=gpt"],
    ["model.heads=4 model.hidden=32", "model.heads=4 model.hidden=40", "model.heads=8 model.hidden=64"],
    ["", "model.ffn=48"],
    ["model.sequence=16", "model.sequence=32", "model.sequence=32 model.positions=40"],
    ["", "model.embedding_layernorm=true"],
]
LLAMA = [
    ["model.family=llama"],
    ["model.heads=4 model.hidden=32", "model.heads=4 model.hidden=40 model.head_dim=16",
     "model.heads=8 model.hidden=64"],
    ["", "model.kv_heads=1", "model.kv_heads=2", "model.kv_heads=4"],
    ["model.ffn=48", "model.ffn=64"],
    ["model.sequence=16", "model.sequence=32"],
    ["", "model.activation=geglu"],
    ["", "model.norm_placement=output"],
    ["", "model.qk_norm=head", "model.qk_norm=width"],
    ["", "model.bias=qkv"],
    ["", "model.window=5"],
    ["", "model.position.scaling=linear model.position.factor=2",
     "model.position.scaling=llama3 model.position.factor=4 model.position.original=8",
     "model.position.scaling=yarn model.position.factor=4 model.position.original=8"],
    ["", "model.tie_embeddings=true"],
]

# Its size, its data and its optimizer.
TRAINING = [
    ["model.layers=4", "model.layers=8"],
    ["model.dropout.attention=0", "model.dropout.attention=0.1"],
    ["model.dropout.hidden=0", "model.dropout.hidden=0.1"],
    ["", "model.z_loss=0.01"],
    ["", "model.mup.base=16"],
    ["", "data.reset_positions=true"],
    ["", "data.reset_attention=true"],
    ["", "data.eod_loss=false"],  # where each micro-batch has its own mean
    ["batch.micro=1", "batch.micro=2"],
    ["batch.global=8", "batch.global=16"],
    ["optimizer.type=adamw", "optimizer.type=adam", "optimizer.type=lamb schedule.peak=2e-2",
     "optimizer.type=sgd schedule.peak=0.1", "optimizer.type=sgd optimizer.momentum=0.9", "optimizer.type=muon"],
    ["optimizer.clip=0", "optimizer.clip=0.5"],
    ["", "train.skip=[2-4]"],
]

# What stays where the run continues on another layout.
PRECISION = [
    ["precision.compute=fp32", "precision.compute=bf16",
     "precision.compute=fp16 precision.loss_scale.initial=1024"],  # a scale that nothing overflows at
    ["", "precision.gradients=same"],
]

# How it is computed, which changes nothing. What comes later has to fit what was drawn before.
COMPUTATION = [
    ["parallel.tensor=2", "parallel.pipeline=2", "parallel.data=2", "parallel.tensor=4",
     "parallel.pipeline=4", "parallel.data=4", "parallel.tensor=2 parallel.pipeline=2",
     "parallel.tensor=2 parallel.data=2", "parallel.pipeline=2 parallel.data=2"],
    ["parallel.schedule=1f1b", "parallel.schedule=interleaved parallel.interleave=2",
     "parallel.schedule=zero-bubble"],
    ["", "parallel.partition=1-3", "parallel.partition=0-4", "parallel.partition=5-3",
     "parallel.partition=8-0", "parallel.partition=0-2-2-0", "parallel.partition=1-4-0-3"],
    ["parallel.sequence=false", "parallel.sequence=true"],
    ["parallel.zero=0", "parallel.zero=1", "parallel.zero=2", "parallel.zero=3"],
    ["parallel.bucket=5000", "parallel.bucket=25e6"],
    ["", "parallel.overlap.gradients=false"],
    ["", "parallel.overlap.parameters=false"],
    ["", "parallel.overlap.pipeline=false"],
    ["", "recompute.granularity=selective", "recompute.granularity=full",
     "recompute.granularity=full recompute.layers=2",
     "recompute.granularity=full recompute.method=block recompute.layers=1",
     "recompute.granularity=full recompute.partition=true",
     "recompute.granularity=full recompute.offload=true",
     "recompute.granularity=full recompute.partition=true recompute.offload=true"],
    ["checkpoint.async=false", "checkpoint.async=true"],
    ["", "checkpoint.compression=1"],
    ["", "checkpoint.local.path=LOCAL checkpoint.local.every=1"],
]

# What a deck has to keep to; its errors are tested elsewhere.
RULES = [
    lambda d: d.get("model.norm_placement") != "output" or float(d.get("model.dropout.hidden", 0)) == 0,
    lambda d: d.get("model.norm_placement") != "output" or d.get("recompute.granularity") != "selective",
    lambda d: "model.mup.base" not in d or d.get("optimizer.type") not in ("lamb", "sgd"),
    lambda d: schedule(d) == "1f1b" or stages(d) > 1,
    lambda d: schedule(d) != "interleaved" or number(d, "model.layers") % (2 * stages(d)) == 0,
    lambda d: schedule(d) != "interleaved" or d.get("parallel.overlap.pipeline") != "false",
    lambda d: schedule(d) != "interleaved" or not partition(d),
    lambda d: not partition(d)
    or (len(partition(d)), sum(partition(d))) == (stages(d), number(d, "model.layers")),
    lambda d: schedule(d) != "zero-bubble" or "recompute.granularity" not in d,
    lambda d: "precision.gradients" not in d or d["optimizer.type"] not in ("lamb", "muon"),
    lambda d: "recompute.partition" not in d
    or number(d, "parallel.tensor") > 1 and d["parallel.sequence"] == "false",
]


def values_of(words):
    """The keys and values of overrides with blanks between."""
    return dict(word.split("=") for word in words.split())


def number(deck, key):
    return int(deck.get(key, 1))


def stages(deck):
    return number(deck, "parallel.pipeline")


def schedule(deck):
    return deck.get("parallel.schedule", "1f1b")


def partition(deck):
    return [int(part) for part in deck.get("parallel.partition", "").split("-") if part]


def ranks(deck):
    return math.prod(number(deck, f"parallel.{axis}") for axis in ("tensor", "pipeline", "data"))


def draw_values(draw, rows, deck, drawn):
    """Of each row a value that goes with `deck` and those before. Adds the row and the value to `drawn`."""
    values = {}
    for row in rows:
        fitting = [words for words in row
                   if all(rule(deck | values | values_of(words)) for rule in RULES)]
        words = draw.choice(fitting)
        drawn.add((id(row), words))
        values |= values_of(words)
    return values


def draw_decks():
    """Values of the model's keys, its precision and two computations of it, for each deck. The first decks have every
    value of the rows between them, the others what comes."""
    draw, decks = random.Random(SEED), []
    missing = {(id(row), words) for row in [*GPT, *LLAMA, *TRAINING, *PRECISION, *COMPUTATION] for words in row}
    while len(decks) < DECKS:
        drawn = set()
        model = draw_values(draw, [*draw.choice([GPT, LLAMA]), *TRAINING], {}, drawn)
        precision = draw_values(draw, PRECISION, model, drawn)
        computations = [draw_values(draw, COMPUTATION, model | precision, drawn) for _ in range(2)]
        if not missing or missing & drawn:
            decks.append((model, precision, computations))
        missing -= drawn
    return decks


class RandomDecks(RunTest):
    def train(self, name, values, *words):
        local = {"LOCAL": str(self.folder / f"{name}-local")}
        self.pretrain(name, "schedule.warmup=2", "train.iterations=5", "model.init_std=0.1", "checkpoint.at_end=false",
                      *(f"{key}={local.get(value, value)}" for key, value in values.items()), *words,
                      ranks=ranks(values))
        return self.losses(name)

    def test_losses_are_those_of_one_rank_in_fp32(self):
        for i, (model, precision, (first, second)) in enumerate(draw_decks(), 1):
            with self.subTest(f"deck {i}: {model} {precision}, {first}, then {second}"):
                serial = self.train(f"{i}-serial", model | {"precision.compute": "fp32"})
                self.assertEqual(len(serial), 5)
                for computation in [first, second]:
                    losses = self.train(f"{i}", model | precision | computation, "checkpoint.every=2",
                                        "train.exit_interval=3")
                compute = precision["precision.compute"]
                self.assert_close(losses, serial, TOLERANCE[compute], f"deck {i}, {compute}")

    def test_tolerances_tell_models_apart(self):
        """Another draw of the weights, or no dropout, is farther away than rounding may lead."""
        losses = self.train("run", {})
        for other in [{"run.seed": 1235}, {"model.dropout.hidden": 0}]:
            others = self.train("-".join(other), {"data.seed": 1234} | other)
            farthest = max(abs(a - b) / b for a, b in zip(others, losses))
            self.assertGreater(farthest, 2 * max(TOLERANCE.values()), other)


if __name__ == "__main__":
    unittest.main(verbosity=2)
