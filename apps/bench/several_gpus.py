#!/usr/bin/env python3
"""What several GPUs of one host reach: cold start, restart, scaling, predicted steps.

    python3 -B apps/bench/several_gpus.py --bin build/release/bin --output several-gpus [--seconds 580] [--only start,scaling]

Runs the parts below in this order as far as --seconds allow, each with a time-out, and prints a table at the end:

    start    1.5B, from mpirun to the end of the first step, with and without timed GEMMs in the cache
    restart  1.5B under --supervise: the wait for a background save, from the kill of a rank to the next step
    bert     BERT-Large, data parallel, one and four micro-batches, against one GPU
    scaling  GPT-2 124M and 1.5B, data parallel; 1.5B with 20 heads on tensor and pipeline ranks; against one GPU
    plan     trireme-plan's predictions of the layouts in tests/data/plan_validation/four_gpus_layouts.tsv
    stall    restart of 1.5B on one GPU
    profile  trireme-bench profile on all GPUs

The folder --output gets table.txt, log.txt (what all programs print), steps.jsonl, plan.tsv, profile.yaml and the tuning
cache. Data and checkpoints, 40 GB, lie in a temporary folder (TMPDIR). --tiny tries the script with small models on CPU ranks.
"""
import argparse
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from plan_accuracy import MODELS, read_table

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests/faults"))
from restart_time import write_tokens  # noqa: E402

LAYOUTS = ROOT / "tests/data/plan_validation/four_gpus_layouts.tsv"
CLUSTERS = {"H100": "h100x4", "H200": "h200x4"}
LARGE = ["inputs/gpt2-1.5b.yaml", "parallel.pipeline=1", "recompute.granularity=none", "precision.compute=bf16",
         "log.every=1", "log.tensorboard.enable=false"]
TINY = ["model.layers=12", "model.hidden=64", "model.heads=4", "model.sequence=64", "model.positions=64"]
KILL_AFTER = 10  # seconds from the interrupt of a command to its kill


class Skipped(Exception):
    """A measurement that failed, or for which no time is left."""


class Measurements:
    """The host's GPUs, the time that is left, and the rows of the table."""

    def __init__(self, options, work):
        self.options, self.work = options, work
        self.deadline = time.monotonic() + options.seconds
        self.rows = []
        self.log = open(options.output / "log.txt", "w", encoding="utf-8")
        self.steps = open(options.output / "steps.jsonl", "w", encoding="utf-8")
        self.tiny = TINY if options.tiny else []
        self.environment = {**os.environ, "XDG_CACHE_HOME": str(work / "cache")}
        if os.geteuid() == 0:
            self.environment.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        if options.tiny:
            self.environment.update(OMPI_MCA_rmaps_base_oversubscribe="1", OMPI_MCA_mpi_yield_when_idle="1",
                                    OMPI_MCA_btl_vader_single_copy_mechanism="none", CUDA_VISIBLE_DEVICES="")

    def add(self, what, ranks, result):
        self.rows.append((what, str(ranks), result))
        print(f"{what}, {ranks}: {result}", flush=True)

    def left(self):
        return self.deadline - time.monotonic() - KILL_AFTER

    def run(self, command, limit):
        """What the command prints; it gets `limit` seconds, or what is left."""
        words = list(map(str, command))
        limit = min(limit, self.left())
        if limit < 5:
            raise Skipped("no time left")
        self.log.write(f"\n$ {' '.join(words)}\n")
        self.log.flush()
        began = time.monotonic()
        with subprocess.Popen(words, cwd=ROOT, env=self.environment, stdin=subprocess.DEVNULL, text=True,
                              stdout=subprocess.PIPE, stderr=self.log, start_new_session=True) as process:
            try:
                out = process.communicate(timeout=limit)[0]
            except subprocess.TimeoutExpired:
                out = end(process)
                raise Skipped(f"did not end within {limit:.0f} s") from None
            except BaseException:
                out = end(process)
                raise
            finally:
                self.log.write(f"{out}== exit code {process.returncode}, {time.monotonic() - began:.1f} s\n")
                self.log.flush()
        if process.returncode != 0:
            raise Skipped(f"exit code {process.returncode}, see log.txt")
        return out

    def launcher(self, ranks):
        return ["mpirun", "--bind-to", "none", "-n", ranks] if ranks > 1 else []

    def step(self, what, ranks, words, limit=60):
        """The JSON of trireme-bench step."""
        out = self.run([*self.launcher(ranks), self.options.bin / "trireme-bench", "step", *words, "--repeats",
                        self.options.repeats, "--json"], limit)
        result = json.loads(out)
        self.steps.write(json.dumps({"what": what, "words": words, **result}) + "\n")
        self.steps.flush()
        return result

    def try_each(self, what, ranks, measure):
        """measure() or None; a failure becomes a row."""
        try:
            return measure()
        except (Skipped, OSError, ValueError, KeyError) as error:
            self.add(what, ranks, f"- ({error})")
            return None


def end(process):
    """Interrupts the command's process group, kills it if that does not help; returns what it printed."""
    for number in (signal.SIGINT, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=KILL_AFTER if number == signal.SIGINT else None)[0]
    return ""


# ---- 1.5B: start and restart


def large(host, ranks):
    micro, count = (1, 1) if host.options.tiny else (8, 4)
    return [*LARGE, f"parallel.data={ranks}", *host.tiny, f"batch.micro={micro}", f"batch.global={micro * count * ranks}"]


def measure_start(host):
    ranks = host.options.gpus
    write_tokens(host.work / "random", 4_000_000)
    for cache in ("no timed GEMMs in the cache", "timed GEMMs in the cache"):
        what = f"1.5B: mpirun to the end of the first step, {cache}"

        def first_step():
            folder = host.work / "start"
            shutil.rmtree(folder, ignore_errors=True)
            began = time.time()
            host.run([*host.launcher(ranks), host.options.bin / "trireme-pretrain", *large(host, ranks),
                         f"data.train={host.work / 'random'}", "data.split=98,2,0", f"run.output={folder}",
                         "train.iterations=3", "schedule.warmup=0", "checkpoint.at_end=false", "evaluate.at_end=false"], 60)
            events = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
            trained = [event for event in events if event["kind"] == "train"]
            host.add(what, ranks, f"{trained[0]['time'] - began:.2f} s; the next step {trained[1]['ms']:.1f} ms")

        host.try_each(what, ranks, first_step)


def measure_restart(host, ranks=None):
    ranks = ranks or host.options.gpus

    def restart():
        out = host.run([sys.executable, "-B", ROOT / "tests/faults/restart_time.py", "--bin", host.options.bin, "--ranks",
                           ranks, "--patience", 90, "--every", 20 if host.options.tiny else 40, "--output",
                           host.work / "restart", *large(host, ranks), "checkpoint.async=true"], 150)
        for line in out.splitlines():
            name, value = re.split("  +", line, maxsplit=1)
            host.add(f"1.5B restart: {name}", ranks, value)

    host.try_each("1.5B restart", ranks, restart)


# ---- steps on several GPUs against one


def measure_bert(host):
    options = host.options
    sizes = ["--shapes", "32x4", "--layers", 2, "--hidden", 64, "--heads", 4, "--device", "host"] if options.tiny else []
    for micro_batches in (1, 4):
        alone = {}
        for ranks in (1, options.gpus):
            what = f"BERT-Large, data parallel, {micro_batches} micro-batch{'es' if micro_batches > 1 else ''}"

            def steps(what=what, ranks=ranks, micro_batches=micro_batches, alone=alone):
                out = host.run([sys.executable, "-B", ROOT / "apps/bench/bert_against_pytorch.py", "--bench",
                                   options.bin / "trireme-bench", "--only", "trireme", "--gpus", ranks, "--micro-batches",
                                   micro_batches, "--repeats", options.repeats, *sizes], 90)
                rows = re.findall(r"^ *(\d+) +(\d+) +Trireme +([\d.]+) +([\d.]+) +([\d.]+)$", out, re.M)
                if not rows:
                    raise Skipped("no rows, see log.txt")
                for sequence, batch, ms, rate, _ in rows:
                    per_gpu = float(rate) / ranks
                    share = f", {100 * per_gpu / alone[sequence]:.1f} % of one GPU" if sequence in alone else ""
                    alone.setdefault(sequence, per_gpu)
                    host.add(f"{what}, {sequence} x {batch}", ranks, f"{ms} ms, {per_gpu:.0f} tokens/s a GPU{share}")

            host.try_each(what, ranks, steps)


def scaling_cases(options):
    """(model, layout, ranks, words): the first of each model is one GPU."""
    gpus = options.gpus
    micros = {"124M": (64, 1), "1.5B": (16, 4), "1.5B, 20 heads": (4, 8)}

    def case(model, layout, ranks, *words, copies=1):
        micro, count = (1, 2) if options.tiny else micros[model]
        shape = MODELS["gpt2-124m" if model == "124M" else "gpt2-1.5b"]
        heads = ["model.heads=20"] if "heads" in model else []
        tiny = [*TINY, "model.vocab=512"] if options.tiny else []
        return (model, layout, ranks, [*shape, *heads, *tiny, "parallel.data=1", *words, f"batch.micro={micro}",
                                       f"batch.global={micro * count * copies}"])

    for model in micros:
        yield case(model, "one GPU", 1)
        yield case(model, "data parallel, ZeRO-1", gpus, f"parallel.data={gpus}", "parallel.zero=1", copies=gpus)
    wide = "1.5B, 20 heads"
    if gpus >= 4:
        partition = "6-6" if options.tiny else "25-23"
        yield case(wide, f"tensor 2 x pipeline 2, {partition}", 4, "parallel.tensor=2", "parallel.pipeline=2",
                   f"parallel.partition={partition}", copies=4)
        yield case(wide, "the same, interleaved", 4, "parallel.tensor=2", "parallel.pipeline=2", "parallel.schedule=interleaved",
                   "parallel.interleave=2", copies=4)
    yield case(wide, "tensor 2", 2, "parallel.tensor=2")
    if gpus >= 4:
        yield case(wide, "tensor 4", 4, "parallel.tensor=4")
        yield case(wide, "tensor 2 with sequence parallelism", 2, "parallel.tensor=2", "parallel.sequence=true")


def measure_scaling(host):
    alone, copies = {}, {}
    for model, layout, ranks, words in scaling_cases(host.options):
        what = f"{model}, {layout}"
        result = host.try_each(what, ranks, lambda: host.step(what, ranks, words))
        if result is None:
            continue
        rate = result["tokens_per_second"] / ranks
        text = f"{result['ms']:.1f} ms, {rate:.0f} tokens/s a GPU, {result['peak_bytes'] / 2**30:.1f} GiB"
        if "model_tflops" in result:
            text += f", {result['model_tflops']:.0f} TFLOP/s a GPU"
        for name, base in (("one GPU", alone), ("data parallel", copies)):
            if model in base:
                text += f", {100 * rate / base[model]:.1f} % of {name}"
        host.add(what, ranks, text)
        if ranks == 1:
            alone[model] = rate
        elif "data" in layout:
            copies[model] = rate


# ---- the planner


def cluster_of(options):
    """The cluster file of this host's GPUs, or None."""
    if options.cluster or options.tiny:
        return options.cluster or ROOT / "inputs/clusters/h200x4.yaml"
    if not shutil.which("nvidia-smi"):
        return None
    found = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, check=False)
    return next((ROOT / f"inputs/clusters/{file}.yaml" for kind, file in CLUSTERS.items() if re.search(rf"\b{kind}\b", found.stdout)), None)


def measure_plan(host):
    options = host.options
    cluster = cluster_of(options)

    def predictions():
        if options.gpus < 4:
            raise Skipped("the layouts need four GPUs")
        if cluster is None:
            raise Skipped("no cluster file for these GPUs: give --cluster")
        layouts = LAYOUTS
        if options.tiny:
            layouts = host.work / "layouts.tsv"
            rows = [row for row in read_table(LAYOUTS) if row[1] != "bert-large"]
            words = " ".join([*TINY, "model.vocab=512", "batch.micro=1", "batch.global=8"])
            layouts.write_text("".join("\t".join([*row[:3], f"{row[3]} {words}"]) + "\n" for row in rows))
        seconds = max(min(200, host.left() - 30), 0)
        out = host.run([sys.executable, "-B", ROOT / "apps/bench/plan_accuracy.py", "--bin", options.bin, "--measure",
                           "--layouts", layouts, "--gpus", options.gpus, "--cluster", cluster, "--mpirun",
                           "mpirun --bind-to none", "--repeats", options.repeats, "--seconds", f"{seconds:.0f}", "-o",
                           options.output / "plan.tsv"], 240)
        print(out, end="", flush=True)
        (options.output / "plan.txt").write_text(out)
        host.add(f"trireme-plan, {cluster.stem}", 4, out.strip().splitlines()[-1])

    host.try_each("trireme-plan", 4, predictions)


def measure_profile(host):
    options = host.options
    quick = ["--micro", "1,2", "--tensor-sizes", "1,2"] if options.tiny else []
    for model in ("gpt2-124m", "gpt2-1.5b", "bert-large"):
        def profile(model=model):
            seconds = 60
            began = time.monotonic()
            host.run([*host.launcher(options.gpus), options.bin / "trireme-bench", "profile", *MODELS[model], *host.tiny,
                         "schedule.warmup=0", "evaluate.every=", "data.train=", "-o", options.output / "profile.yaml",
                         "--seconds", seconds, *quick], seconds + 30)
            host.add(f"profile of {model}", options.gpus, f"{time.monotonic() - began:.0f} s")

        host.try_each(f"profile of {model}", options.gpus, profile)


# ---- main

PARTS = {"start": measure_start, "restart": measure_restart, "bert": measure_bert, "scaling": measure_scaling,
         "plan": measure_plan, "stall": lambda host: measure_restart(host, 1), "profile": measure_profile}


def count_gpus():
    if not shutil.which("nvidia-smi"):
        return 0
    found = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    return len(re.findall(r"^GPU", found.stdout, re.M))


def finish(host):
    """Prints the table, and keeps it and the tuning cache."""
    widths = [max(len(row[i]) for row in host.rows) if host.rows else 0 for i in (0, 1)]
    table = "".join(f"{what:<{widths[0]}}  {ranks:>{widths[1]}}  {result}\n" for what, ranks, result in host.rows)
    (host.options.output / "table.txt").write_text(table)
    cache = host.work / "cache/trireme/gemm_tuning.txt"
    if cache.exists():
        shutil.copy(cache, host.options.output)
    print(f"\n{table}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, required=True, help="the folder of the programs")
    parser.add_argument("--output", type=pathlib.Path, required=True, help="a folder for the results")
    parser.add_argument("--gpus", type=int, help="ranks; by default all GPUs of this host")
    parser.add_argument("--seconds", type=float, default=580, help="for everything")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas")
    parser.add_argument("--repeats", type=int, default=3, help="timed steps, of which the median counts")
    parser.add_argument("--cluster", type=pathlib.Path, help="the cluster file; by default that of this host's GPUs")
    parser.add_argument("--tiny", action="store_true", help="small models on CPU ranks: tries the script")
    options = parser.parse_args()
    options.bin, options.output = options.bin.absolute(), options.output.absolute()
    options.gpus = options.gpus or (4 if options.tiny else count_gpus())
    parts = options.only.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"--only {','.join(sorted(unknown))}: expected some of {', '.join(PARTS)}")
    if options.gpus < 2:
        parser.error("this host has fewer than two GPUs (nvidia-smi -L lists them)")
    options.output.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that commands are ended and the table is printed
    with tempfile.TemporaryDirectory() as work:
        host = Measurements(options, pathlib.Path(work))
        try:
            for part in filter(parts.__contains__, PARTS):
                began = time.monotonic()
                PARTS[part](host)
                print(f"== {part}: {time.monotonic() - began:.0f} s, {host.left():.0f} s left", flush=True)
        finally:
            finish(host)


if __name__ == "__main__":
    main()
