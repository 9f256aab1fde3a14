#!/usr/bin/env python3
"""Losses of GPT-2 355M in bf16 and in FP8 on one GPU: the difference after as many tokens, the speed to the same loss.

    python3 apps/bench/fp8_curves.py --bin build/release/bin --vocabulary vocab.json merges.txt \\
      --texts FOLDER... --seeds 1 2 3 --tokens 50e6 --results curves.csv

--texts takes the text of all .py, .md, .rst and .txt files below the folders, each once, in the order of their SHA-256; a
fiftieth of them is the validation split. A run's learning rate rises for a tenth of its iterations and ends at a tenth of
its peak. Rows are appended to --results, a row per validation; runs that are in it are not run again, and the table at the
end is of all of its rows. --table prints that alone.
"""
import argparse
import csv
import hashlib
import json
import pathlib
import statistics
import subprocess
import sys
import time

SEQUENCE, BATCH = 1024, 128
COLUMNS = ["precision", "seed", "iteration", "tokens", "seconds", "loss"]
PRECISIONS = {"bf16": "gemm: same", "fp8": "gemm: fp8", "fp8-e4m3": "gemm: fp8, fp8: {backward: e4m3}",
              "fp8-block": "gemm: fp8, fp8: {recipe: block}"}


def deck(words, precision, seed, folder, iterations):
    vocab, merges = words.vocabulary
    return f"""run: {{output: {folder}, device: cuda, seed: {seed}}}
model: {{layers: 24, hidden: 1024, heads: 16, sequence: {SEQUENCE}, dropout: {{attention: 0, hidden: 0}}}}
batch: {{micro: {words.micro}, global: {BATCH}}}
precision: {{compute: bf16, {PRECISIONS[precision]}}}
optimizer: {{weight_decay: 0.1, beta2: 0.95, clip: 1.0}}
schedule: {{type: cosine, peak: 6e-4, minimum: 6e-5, warmup: {iterations // 10} iterations}}
data: {{train: {words.scratch / "texts_text_document"}, split: "98,2,0", tokenizer: {{type: gpt2, vocab: {vocab}, merges: {merges}}}}}
train: {{iterations: {iterations}}}
evaluate: {{every: {max(1, iterations // 12)}, iterations: 4}}
checkpoint: {{at_end: false}}
log: {{every: 1, tensorboard: {{enable: false}}}}
"""


def write_texts(folders, path):
    """One JSON line for each text; how many characters they have together."""
    texts = {}
    for file in (file for folder in folders for file in pathlib.Path(folder).rglob("*")):
        if file.suffix in {".py", ".md", ".rst", ".txt"} and file.is_file():
            data = file.read_bytes()
            try:
                texts[hashlib.sha256(data).hexdigest()] = data.decode()
            except UnicodeDecodeError:
                continue
    with path.open("w") as out:
        for key in sorted(texts):
            if texts[key].strip():
                out.write(json.dumps({"text": texts[key]}) + "\n")
    return sum(map(len, texts.values()))


def run(words, program, *arguments):
    command = [words.bin / program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def preprocess(words):
    prefix = words.scratch / "texts"
    if not pathlib.Path(f"{prefix}_text_document.idx").exists():
        characters = write_texts(words.texts, words.scratch / "texts.jsonl")
        print(run(words, "trireme-preprocess", "--input", words.scratch / "texts.jsonl", "--output", prefix, "--tokenizer", "gpt2",
                  "--vocab", words.vocabulary[0], "--merges", words.vocabulary[1], "--append-eod", "--workers", words.workers,
                  "--quiet"), f"{characters:,} characters", flush=True)


def curve(words, precision, seed):
    """Rows of one run: validation losses, the seconds of iterations up to each."""
    iterations = round(words.tokens / (SEQUENCE * BATCH))
    folder = words.scratch / f"{precision}-{seed}"
    path = words.scratch / f"{precision}-{seed}.yaml"
    path.write_text(deck(words, precision, seed, folder, iterations))
    began = time.time()
    run(words, "trireme-pretrain", path)
    events = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    seconds, rows = 0.0, []
    for event in events:
        if event["kind"] == "train":
            seconds += event["ms"] / 1e3
        elif event["kind"] == "eval" and event["split"] == "valid" and not event["at_end"]:
            rows.append([precision, seed, event["iteration"], event["consumed_tokens"], round(seconds, 2), round(event["loss"], 5)])
    print(f"{precision}, seed {seed}: {rows[-1][-1]} after {rows[-1][3]:,} tokens, {seconds:.0f} s of iterations, "
          f"{time.time() - began:.0f} s in all", flush=True)
    return rows


def read(path):
    """Curves by precision and seed: lists of (tokens, seconds, loss)."""
    curves = {}
    if path.exists():
        with path.open() as file:
            for row in csv.DictReader(file):
                point = (int(row["tokens"]), float(row["seconds"]), float(row["loss"]))
                curves.setdefault((row["precision"], int(row["seed"])), []).append(point)
    return curves


def seconds_to(points, loss):
    """When a curve falls to `loss`, straight between its points; None if it does not."""
    for before, after in zip(points, points[1:]):
        if after[2] <= loss:
            share = (before[2] - loss) / (before[2] - after[2])
            return before[1] + share * (after[1] - before[1])
    return None


def print_table(curves):
    by_tokens = {}
    for (precision, seed), points in curves.items():
        for tokens, _, loss in points:
            by_tokens.setdefault(tokens, {}).setdefault(precision, {})[seed] = loss
    names = [name for name in PRECISIONS if any(name == precision for precision, _ in curves)]
    print("| tokens | " + " | ".join(names) + " |\n" + "| --- " * (1 + len(names)) + "|")
    for tokens, losses in sorted(by_tokens.items()):
        cells = []
        for name in names:
            own = list(losses.get(name, {}).values())
            spread = f" ± {statistics.stdev(own):.4f}" if len(own) > 1 else ""
            cells.append(f"{statistics.mean(own):.4f}{spread}" if own else "")
        print(f"| {tokens:,} | " + " | ".join(cells) + " |")
    for name in names:
        for seed in sorted(seed for precision, seed in curves if precision == name != "bf16" and ("bf16", seed) in curves):
            plain, own = curves["bf16", seed], curves[name, seed]
            worst = max(plain[-1][2], own[-1][2])  # the loss that both reach
            times = seconds_to(plain, worst), seconds_to(own, worst)
            ratio = f"{times[0] / times[1]:.3f} times as fast" if all(times) else "no loss that both reach"
            print(f"{name}, seed {seed}: {own[-1][2] - plain[-1][2]:+.4f} at the end; {plain[-1][1] / own[-1][1]:.3f} times as fast "
                  f"for as many tokens, {ratio} to {worst:.4f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path)
    parser.add_argument("--vocabulary", type=pathlib.Path, nargs=2, metavar=("VOCAB", "MERGES"))
    parser.add_argument("--texts", nargs="+", default=[])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=["bf16", "fp8"])
    parser.add_argument("--tokens", type=float, default=50e6)
    parser.add_argument("--micro", type=int, default=64, help="samples of a micro-batch (64)")
    parser.add_argument("--workers", type=int, default=16, help="of trireme-preprocess (16)")
    parser.add_argument("--scratch", type=pathlib.Path, default=pathlib.Path("fp8-curves"))
    parser.add_argument("--results", type=pathlib.Path, default=pathlib.Path("fp8-curves.csv"))
    parser.add_argument("--table", action="store_true", help="only print the table of --results")
    words = parser.parse_args()
    if not words.table:
        if not (words.bin and words.vocabulary and words.texts):
            parser.error("--bin, --vocabulary and --texts are needed, or --table")
        words.scratch.mkdir(parents=True, exist_ok=True)
        preprocess(words)
    for seed in [] if words.table else words.seeds:
        for precision in words.precisions:
            if (precision, seed) in read(words.results):
                continue
            rows = curve(words, precision, seed)
            new = not words.results.exists()
            with words.results.open("a", newline="") as file:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerows([COLUMNS, *rows] if new else rows)
    print_table(read(words.results))


main()
