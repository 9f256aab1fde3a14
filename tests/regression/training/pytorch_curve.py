#!/usr/bin/env python3
"""Trains GPT-2 124M with trireme-pretrain and with PyTorch, from the same weights and on the same
batches, and compares the two loss curves.

    python3 tests/regression/training/pytorch_curve.py --bin build/release/bin --data PREFIX --output FOLDER

PREFIX is a dataset of GPT-2 token ids (trireme-preprocess --tokenizer gpt2), or of --vocab others. Needs a GPU, PyTorch,
h5py and numpy; with --tiny a small model in fp32 on the CPU. Prints both losses and gradient norms
at every tenth part of the run; ends with 1 when two losses are further apart than the limit.
With --layouts "parallel.tensor=2,parallel.pipeline=2" (may be repeated) Trireme also trains under
these layouts; curves.csv has a column for each: apps/bench/figures/losses.csv is such a file.
"""

import argparse
import dataclasses
import json
import math
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import h5py
import numpy
import torch
from torch.nn import functional

DECK = Path(__file__).resolve().parents[3] / "inputs" / "gpt2-124m.yaml"


@dataclasses.dataclass
class Recipe:
    """What both programs train, and how."""

    steps: int
    micro: int  # samples of an update, all computed together
    sequence: int = 1024
    layers: int = 12
    hidden: int = 768
    heads: int = 12
    vocab: int = 50257
    device: str = "cuda"
    precision: str = "bf16"
    limit: float = 5e-3  # largest relative difference of two losses
    peak: float = 6e-4
    minimum: float = 6e-5
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.1
    clip: float = 1.0
    layernorm_eps: float = 1e-5
    seed: int = 1234
    split: str = "969,30,1"

    @property
    def warmup(self):
        return min(100, self.steps // 5)

    def learning_rate(self, step):
        """The rate of update `step`, from 1: Megatron-LM's schedule, which rises from 0."""
        done = step - 1
        if done <= self.warmup:
            return self.peak * done / self.warmup
        ratio = (done - self.warmup) / (self.steps - self.warmup)
        return self.minimum + 0.5 * (math.cos(math.pi * ratio) + 1) * (self.peak - self.minimum)

    def overrides(self):
        """The deck's keys that make Trireme follow this recipe."""
        keys = {
            "run.seed": self.seed, "run.device": {"cuda": "cuda", "cpu": "host"}[self.device],
            "precision.compute": self.precision,
            "model.layers": self.layers, "model.hidden": self.hidden, "model.heads": self.heads,
            "model.sequence": self.sequence, "model.positions": self.sequence,
            "model.vocab": self.vocab, "model.layernorm_eps": self.layernorm_eps,
            "model.dropout.attention": 0, "model.dropout.hidden": 0,
            "batch.micro": self.micro, "batch.global": self.micro,
            "optimizer.beta1": self.beta1, "optimizer.beta2": self.beta2,
            "optimizer.eps": self.eps, "optimizer.weight_decay": self.weight_decay,
            "optimizer.clip": self.clip,
            "schedule.peak": self.peak, "schedule.minimum": self.minimum,
            "schedule.warmup": f"{self.warmup} iterations", "train.iterations": self.steps,
            "data.split": self.split, "evaluate.at_end": "false",
            "checkpoint.at_end": "false", "log.every": 1, "log.tensorboard.enable": "false"}
        return [f"{key}={value}" for key, value in keys.items()]


# ---- Trireme


def call(log, *command):
    """Runs a program, whose output goes to the file `log`; shows its end when it fails."""
    with open(log, "w") as file:
        code = subprocess.run([*map(str, command)], stdout=file, stderr=subprocess.STDOUT,
                              check=False).returncode
    if code != 0:
        sys.exit(f"{' '.join(map(str, command))}\nended with {code}:\n{log.read_text()[-3000:]}")


def train_events(folder, steps):
    """The events of the training lines of a run that logs each iteration."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    events = [event for event in map(json.loads, lines) if event["kind"] == "train"]
    if [event["iteration"] for event in events] != list(range(1, steps + 1)):
        sys.exit(f"{folder / 'metrics.jsonl'} lacks iterations")
    return events


def train_under_layout(recipe, programs, prefix, output, layout):
    """The losses of the run under a layout such as "parallel.tensor=2,parallel.pipeline=2"."""
    keys = dict(word.split("=") for word in layout.split(","))
    ranks = math.prod(int(keys.get(f"parallel.{axis}", 1)) for axis in ("tensor", "pipeline", "data"))
    folder = output / layout
    shutil.rmtree(folder, ignore_errors=True)
    call(output / "layout.log", "mpirun", "-n", ranks, "--oversubscribe", "--bind-to", "none", programs / "trireme-pretrain",
         DECK, f"data.train={prefix}", f"run.output={folder}", f"data.index_cache={output / 'cache'}", *recipe.overrides(),
         *layout.split(","))
    return [event["loss"] for event in train_events(folder, recipe.steps)]


def train_with_trireme(recipe, programs, prefix, output):
    """Trains in output/trireme; returns the checkpoint after iteration 1 and the train events.

    The learning rate of iteration 1 is 0: that checkpoint has the initial weights, and the moments
    of the first batch's gradient."""
    folder = output / "trireme"
    shutil.rmtree(folder, ignore_errors=True)
    words = [programs / "trireme-pretrain", DECK, f"data.train={prefix}", f"run.output={folder}",
             f"data.index_cache={output / 'cache'}", *recipe.overrides()]
    call(output / "first.log", *words, "train.exit_interval=1")
    call(output / "rest.log", *words)
    return folder / "checkpoints" / "step-00000001.h5", train_events(folder, recipe.steps)


# ---- the batches


class Samples:
    """The samples of a run in its order, from Megatron-LM's three index arrays and the dataset."""

    TYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}

    def __init__(self, prefix, indices, sequence):
        self.sequence = sequence
        self.documents, self.samples, self.shuffle = (
            numpy.load(indices / f"{name}_index.npy", mmap_mode="r")
            for name in ("document", "sample", "shuffle"))
        with open(f"{prefix}.idx", "rb") as file:
            magic, version, code, count, _ = struct.unpack("<9sQBQQ", file.read(34))
            if magic != b"MMIDIDX\0\0" or version != 1:
                sys.exit(f"{prefix}.idx is not the index of a dataset")
            self.lengths = numpy.fromfile(file, "<i4", count)
            pointers = numpy.fromfile(file, "<i8", count)
        dtype = numpy.dtype(self.TYPES[code])
        self.starts = pointers // dtype.itemsize
        self.tokens = numpy.memmap(f"{prefix}.bin", dtype, mode="r")

    def sample(self, number):
        """The sequence + 1 tokens of a sample, which continues from one document to the next."""
        slot, offset = map(int, self.samples[self.shuffle[number]])
        parts, missing = [], self.sequence + 1
        while missing > 0:
            document = self.documents[slot]
            size = min(missing, int(self.lengths[document]) - offset)
            start = int(self.starts[document]) + offset
            parts.append(self.tokens[start:start + size])
            slot, offset, missing = slot + 1, 0, missing - size
        return numpy.concatenate(parts).astype(numpy.int64)

    def batch(self, step, size):
        """[size, sequence + 1] of update `step`, from 1."""
        first = (step - 1) * size
        return numpy.stack([self.sample(number) for number in range(first, first + size)])


def open_samples(recipe, programs, prefix, output):
    indices = output / "indices"
    call(output / "indices.log", programs / "trireme-inspect", prefix, "--index", "train",
         "--sequence", recipe.sequence, "--samples", recipe.steps * recipe.micro,
         "--seed", recipe.seed, "--split", recipe.split, "--output", indices)
    return Samples(prefix, indices, recipe.sequence)


# ---- PyTorch


def read_group(file, group, device):
    """The tensors of a group of a checkpoint by their names within it."""
    tensors = {}
    file[group].visititems(
        lambda name, item: tensors.update({name: torch.from_numpy(item[()]).to(device)})
        if isinstance(item, h5py.Dataset) else None)
    return tensors


class Gpt:
    """GPT-2 with the weights of a checkpoint, and AdamW with its moments."""

    def __init__(self, recipe, checkpoint):
        self.recipe = recipe
        with h5py.File(checkpoint, "r") as file:
            assert file.attrs["iteration"] == 1
            weights = read_group(file, "model", recipe.device)
            self.first_moments = read_group(file, "optimizer/m", recipe.device)
            second_moments = read_group(file, "optimizer/v", recipe.device)
        self.weights = {name: weight.requires_grad_() for name, weight in weights.items()}
        # Matrices decay, embeddings among them; biases and norms do not.
        matrices = [weight for weight in self.weights.values() if weight.dim() == 2]
        vectors = [weight for weight in self.weights.values() if weight.dim() == 1]
        self.optimizer = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": recipe.weight_decay},
             {"params": vectors, "weight_decay": 0.0}],
            betas=(recipe.beta1, recipe.beta2), eps=recipe.eps, fused=recipe.device == "cuda")
        for name, weight in self.weights.items():
            self.optimizer.state[weight] = {
                "step": torch.ones((), device=recipe.device),
                "exp_avg": self.first_moments[name].clone(), "exp_avg_sq": second_moments[name]}

    def linear(self, x, name):
        return functional.linear(x, self.weights[f"{name}/weight"], self.weights[f"{name}/bias"])

    def norm(self, x, name):
        return functional.layer_norm(x, x.shape[-1:], self.weights[f"{name}/weight"],
                                     self.weights[f"{name}/bias"], self.recipe.layernorm_eps)

    def attention(self, x, name):
        joined = self.linear(x, f"{name}/qkv").unflatten(-1, (3, self.recipe.heads, -1))
        query, key, value = joined.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.linear(mixed.transpose(1, 2).flatten(2), f"{name}/projection")

    def mlp(self, x, name):
        wide = functional.gelu(self.linear(x, f"{name}/up"), approximate="tanh")
        return self.linear(wide, f"{name}/down")

    def loss(self, tokens):
        """The mean loss over the [b, sequence + 1] tokens of a batch."""
        inputs, labels = tokens[:, :-1], tokens[:, 1:]
        words = self.weights["embedding/word"]
        x = functional.embedding(inputs, words) + self.weights["embedding/position"]
        for layer in range(self.recipe.layers):
            name = f"layers/{layer}"
            x = x + self.attention(self.norm(x, f"{name}/norm1"), f"{name}/attention")
            x = x + self.mlp(self.norm(x, f"{name}/norm2"), f"{name}/mlp")
        logits = functional.linear(self.norm(x, "final_norm"), words)
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())

    def gradient(self, batch):
        """Leaves the clipped gradient of a batch; returns its loss and the norm before the clip."""
        self.optimizer.zero_grad()
        tokens = torch.from_numpy(batch).to(self.recipe.device)
        with torch.autocast(self.recipe.device, torch.bfloat16, self.recipe.precision == "bf16"):
            loss = self.loss(tokens)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.weights.values(), self.recipe.clip)
        return loss.item(), norm.item()

    def update(self, step):
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.learning_rate(step)
        self.optimizer.step()

    def distance_to_first_gradient(self):
        """How far the gradient is from the one that the checkpoint's first moments tell of."""
        apart = size = 0.0
        for name, weight in self.weights.items():
            first = self.first_moments[name] / (1 - self.recipe.beta1)
            apart += (weight.grad - first).double().square().sum().item()
            size += first.double().square().sum().item()
        return math.sqrt(apart / size)


def train_with_pytorch(recipe, checkpoint, samples):
    """The losses and gradient norms of all steps. The first step updates nothing: the checkpoint has
    its moments."""
    model = Gpt(recipe, checkpoint)
    results = []
    for step in range(1, recipe.steps + 1):
        results.append(model.gradient(samples.batch(step, recipe.micro)))
        if step == 1:
            print(f"gradient of the first batch: the relative distance of the two is "
                  f"{model.distance_to_first_gradient():.1e}\n")
        else:
            model.update(step)
    return results


# ---- the comparison


def compare(recipe, events, results):
    """Prints the table; returns the largest relative difference in it."""
    every = max(recipe.steps // 10, 1)
    largest = 0.0
    print(f"{'step':>6} {'rate':>9} {'Trireme':>10} {'PyTorch':>10} {'difference':>11}"
          f"   gradient norms")
    for step in [1, *range(every, recipe.steps + 1, every)]:
        event, (loss, norm) = events[step - 1], results[step - 1]
        difference = abs(event["loss"] - loss) / loss
        largest = max(largest, difference)
        print(f"{step:6d} {recipe.learning_rate(step):9.2e} {event['loss']:10.5f} {loss:10.5f} "
              f"{100 * difference:9.4f} %   {event['grad_norm']:.4f} {norm:.4f}")
    return largest


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--bin", type=Path, required=True, help="folder of Trireme's programs")
    parser.add_argument("--data", required=True, help="dataset without .bin and .idx")
    parser.add_argument("--output", type=Path, required=True, help="folder for what is written")
    parser.add_argument("--steps", type=int, help="updates (default 500; 100 with --tiny)")
    parser.add_argument("--micro", type=int, help="samples of an update (default 8)")
    parser.add_argument("--vocab", type=int, default=50257, help="ids of the dataset (default 50257, GPT-2's)")
    parser.add_argument("--tiny", action="store_true", help="a small model in fp32 on the CPU")
    parser.add_argument("--precision", choices=["bf16", "fp32"], default="bf16", help="of both programs on the GPU")
    parser.add_argument("--layouts", action="append", default=[], metavar="KEY=VALUE,...",
                        help="keys of a layout that Trireme trains under as well")
    options = parser.parse_args()
    micro = options.micro or 8
    if options.tiny:
        recipe = Recipe(steps=options.steps or 100, micro=micro, sequence=64, layers=4, hidden=64,
                        heads=4, vocab=options.vocab, device="cpu", precision="fp32", limit=1e-4)
    else:
        recipe = Recipe(steps=options.steps or 500, micro=micro, vocab=options.vocab, precision=options.precision)
    if recipe.steps < 5:
        parser.error("--steps: 5 or more, for there is a warm-up")
    output = options.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    prefix = Path(options.data).resolve()

    checkpoint, events = train_with_trireme(recipe, options.bin.resolve(), prefix, output)
    samples = open_samples(recipe, options.bin.resolve(), prefix, output)
    results = train_with_pytorch(recipe, checkpoint, samples)
    layouts = {layout: train_under_layout(recipe, options.bin.resolve(), prefix, output, layout)
               for layout in options.layouts}
    # Quoted, since a layout has commas.
    head = ["iteration", "serial", "pytorch", *(f'"{layout}"' for layout in layouts)]
    columns = [[event["loss"] for event in events], [loss for loss, _ in results], *layouts.values()]
    rows = [f"{event['iteration']}," + ",".join(f"{column[i]:.9g}" for column in columns) for i, event in enumerate(events)]
    (output / "curves.csv").write_text("\n".join([",".join(head), *rows]) + "\n")
    largest = compare(recipe, events, results)
    verdict = "within" if largest <= recipe.limit else "ABOVE"
    print(f"\nlargest difference {100 * largest:.4f} %, {verdict} the limit of "
          f"{100 * recipe.limit:g} %; all steps are in {output / 'curves.csv'}")
    return 0 if largest <= recipe.limit else 1


if __name__ == "__main__":
    sys.exit(main())
