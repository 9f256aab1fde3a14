"""Compares trireme-plan's predictions with measured steps: time and peak memory of the layouts in a file.

    python3 -B apps/bench/plan_accuracy.py --bin build/release/bin --measure -o tests/data/plan_validation/h200.tsv
    python3 -B apps/bench/plan_accuracy.py --bin build/release/bin tests/data/plan_validation/h200.tsv

The first form measures every layout on the GPUs of this machine (layouts of one GPU run concurrently, one on each GPU) and writes a
table; the second prints a table with today's predictions. A layout that fails is left out and named. --predict measures
nothing.
--layouts tests/data/plan_validation/four_gpus_layouts.tsv, with --gpus 4 and --cluster, has those of four GPUs.
Rows with a fifth column, "nccl", are printed but do not count: their shards went through NCCL, now copy engines exchange them.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import queue
import subprocess
import sys
import tempfile
import time

from bert_against_pytorch import write_records

ROOT = pathlib.Path(__file__).parents[2]
LAYOUTS = ROOT / "tests/data/plan_validation/h200_layouts.tsv"
GPT = ["inputs/gpt2-124m.yaml", "model.sequence=1024", "precision.compute=bf16"]
MODELS = {
    "gpt2-124m": GPT,
    "gpt2-355m": GPT + ["model.layers=24", "model.hidden=1024", "model.heads=16"],
    "gpt2-774m": GPT + ["model.layers=36", "model.hidden=1280", "model.heads=20"],
    "gpt2-1.5b": GPT + ["model.layers=48", "model.hidden=1600", "model.heads=25"],
    "bert-large": ["inputs/bert-large.yaml", "precision.compute=bf16", "data.tokenizer.type=", "data.tokenizer.vocab=",
                   "data.tokenizer.lowercase=", "data.split=1,0,0", "data.bert.dialect=tfrecord", "data.bert.sentence_task=",
                   "data.bert.mask_probability=", "data.bert.short_sequence=", "data.bert.max_predictions=77"],
}
COLUMNS = ["layout", "ranks", "measured_ms", "measured_bytes"]


def read_table(path):
    lines = [line for line in pathlib.Path(path).read_text().splitlines() if line and not line.startswith("#")]
    return [line.split("\t") for line in lines]


def words_of(model, overrides):
    return MODELS[model] + ["schedule.warmup=0", "parallel.data=1", "evaluate.every=", *overrides.split()]


def run(command, environment=None):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, cwd=ROOT, timeout=100,
                          env={**os.environ, **(environment or {})}, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))} ended with {done.returncode}: {done.stderr.strip()[-600:]}")
    return done.stdout


def predict(options, model, overrides):
    """Milliseconds and bytes, and where the time goes."""
    text = run([options.bin / "trireme-plan", *words_of(model, overrides), "run.device=cuda", "--cluster",
                options.cluster, "--top", "1", "--json"])
    given = json.loads(text)["given"]
    return 1e3 * given["seconds"], given["memory_bytes"], given


def measure(options, layout, records, devices):
    """Milliseconds and bytes of the rank with the highest peak."""
    name, model, ranks, overrides = layout
    if time.monotonic() > options.deadline:
        raise RuntimeError(f"not begun: {options.seconds:.0f} s have passed")
    words = words_of(model, overrides)
    if model == "bert-large":
        words.append(f"data.train={records['128' if 'sequence=128' in overrides else '512']}")
    words.append("run.device=cuda")  # not the host where there are fewer GPUs than --gpus says
    command = [options.bin / "trireme-bench", "step", *words, "--repeats", str(options.repeats), "--json"]
    if int(ranks) > 1:
        command = [*options.mpirun.split(), "-n", ranks, *command]
    result = json.loads(run(command, {"CUDA_VISIBLE_DEVICES": devices} if devices else None))
    print(f"{name}: {result['ms']:.2f} ms, {result['peak_bytes']} bytes", file=sys.stderr, flush=True)
    return result["ms"], result["peak_bytes"]


def measure_all(options, folder):
    """The rows of COLUMNS. Layouts of one GPU run concurrently, one on each GPU."""
    layouts = read_table(options.layouts)
    records = {}
    for length, predictions in (("512", 77), ("128", 19)):
        records[length] = folder / f"random-{length}.tfrecord"
        write_records(records[length], int(length), predictions, 256, vocabulary=30522)
    rows, failed = {}, []
    free = queue.SimpleQueue()
    for gpu in range(options.gpus):
        free.put(str(gpu))

    def on_one(layout):
        gpu = free.get()
        try:
            return measure(options, layout, records, gpu if options.gpus > 0 else "")
        finally:
            free.put(gpu)

    def note(layout, call):
        try:
            rows[layout[0]] = call()
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            failed.append(f"{layout[0]}: {error}")

    with concurrent.futures.ThreadPoolExecutor(max(options.gpus, 1)) as pool:
        single = [(layout, pool.submit(on_one, layout)) for layout in layouts if layout[2] == "1"]
        for layout, future in single:
            note(layout, future.result)
    for layout in layouts:
        if int(layout[2]) > max(options.gpus, 1):
            failed.append(f"{layout[0]}: needs {layout[2]} GPUs (--gpus)")
        elif layout[2] != "1":
            note(layout, lambda chosen=layout: measure(options, chosen, records, ""))
    print("\n".join(failed), file=sys.stderr)
    return [[name, ranks, *map(str, rows[name])] for name, _, ranks, _ in layouts if name in rows]


def print_predictions(options):
    for name, model, ranks, overrides in read_table(options.layouts):
        seconds, planned, _ = predict(options, model, overrides)
        print(f"{name:<27} {ranks:>5} {seconds:>7.1f} ms {planned / 2**30:>6.2f} GiB")


def compare(options, rows):
    layouts = {layout[0]: layout for layout in read_table(options.layouts)}
    print(f"{'layout':<27} {'ranks':>5} {'measured':>9} {'predicted':>9} {'error':>7} {'measured':>10} {'planned':>10} {'error':>7}")
    errors, memory_errors = [], []
    for name, ranks, ms, peak, *reduced_by in rows:
        _, model, _, overrides = layouts[name]
        seconds, planned, _ = predict(options, model, overrides)
        error, memory_error = 100 * (seconds / float(ms) - 1), 100 * (planned / float(peak) - 1)
        if not reduced_by:
            errors.append(error)
            memory_errors.append(memory_error)
        print(f"{name:<27} {ranks:>5} {float(ms):>6.1f} ms {seconds:>6.1f} ms {error:>+6.1f}% "
              f"{float(peak) / 2**30:>6.2f} GiB {planned / 2**30:>6.2f} GiB {memory_error:>+6.1f}%{' by NCCL' * bool(reduced_by)}")
    mean = lambda values: sum(map(abs, values)) / max(len(values), 1)
    print(f"{len(errors)} layouts, time: mean error {mean(errors):.2f} %, worst {max(map(abs, errors)):.2f} %; "
          f"memory: {mean(memory_errors):.2f} %, {max(map(abs, memory_errors)):.2f} %")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", nargs="?", help="measured steps, as --measure writes them")
    parser.add_argument("--bin", type=pathlib.Path, required=True, help="the folder of the programs")
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--predict", action="store_true", help="print the predictions alone")
    parser.add_argument("-o", "--output", type=pathlib.Path)
    parser.add_argument("--layouts", type=pathlib.Path, default=LAYOUTS)
    parser.add_argument("--cluster", type=pathlib.Path, default=ROOT / "inputs/clusters/h200x4.yaml")
    parser.add_argument("--mpirun", default="mpirun --allow-run-as-root")
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=3600, help="after which no further layout is begun")
    options = parser.parse_args()
    options.bin = options.bin.absolute()
    options.deadline = time.monotonic() + options.seconds
    if options.predict:
        return print_predictions(options)
    if options.measure:
        with tempfile.TemporaryDirectory() as folder:
            rows = measure_all(options, pathlib.Path(folder))
        if not rows:
            sys.exit("no layout was measured")
        if options.output:
            options.output.write_text("# " + "\t".join(COLUMNS) + "\n" + "".join("\t".join(row) + "\n" for row in rows))
    elif options.table:
        rows = read_table(options.table)
    else:
        parser.error("give a table, --measure or --predict")
    return compare(options, rows)


if __name__ == "__main__":
    main()
