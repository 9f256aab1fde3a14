"""Measures how long a checkpoint holds training up, and how long a run takes from the kill of a rank to its next
step under --supervise.

    python3 tests/faults/restart_time.py --bin build/release/bin --ranks 4 inputs/gpt2-1.5b.yaml parallel.data=4

trains the deck on random tokens, kills a rank when a checkpoint has been written, and waits for the first
iteration after that. Prints a table. Words after the deck are overrides; the run folder, --output, is deleted.
"""

import argparse
import array
import contextlib
import json
import os
import random
import re
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import time
from pathlib import Path

TYPE_UINT16, DOCUMENTS = 8, 512


def write_tokens(prefix, tokens):
    """A dataset of random tokens below 2**15: DOCUMENTS documents in Megatron-LM's format."""
    length = tokens // DOCUMENTS
    values = array.array("H", random.Random(1).randbytes(2 * length * DOCUMENTS))
    values = array.array("H", (value & 0x7FFF for value in values))
    Path(f"{prefix}.bin").write_bytes(values.tobytes())
    header = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, TYPE_UINT16, DOCUMENTS, DOCUMENTS + 1)
    lengths = array.array("i", [length] * DOCUMENTS)
    pointers = array.array("q", (2 * length * i for i in range(DOCUMENTS)))
    documents = array.array("q", range(DOCUMENTS + 1))
    Path(f"{prefix}.idx").write_bytes(header + lengths.tobytes() + pointers.tobytes() + documents.tobytes())


class Run:
    """A supervised run; what its files say so far."""

    def __init__(self, command, folder):
        self.folder = folder
        self.began = time.monotonic()
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)

    def events(self, kind):
        path = self.folder / "metrics.jsonl"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [event for event in map(json.loads, lines) if event["kind"] == kind]

    def ranks(self):
        """The processes of the program that the supervising one has started, directly or through a launcher."""
        parents, ranks = {}, []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                process = int(entry.name)
                status = (entry / "status").read_text()
                parents[process] = int(re.search(r"^PPid:\s+(\d+)", status, re.M).group(1))
                if Path(os.readlink(entry / "exe")).name == "trireme-pretrain" and process != self.process.pid:
                    ranks.append(process)

        def is_ours(process):
            while process > 1:
                process = parents.get(process, 0)
                if process == self.process.pid:
                    return True
            return False

        return sorted(filter(is_ours, ranks))

    def wait_until(self, condition, what, seconds):
        deadline = time.monotonic() + seconds
        while not condition():
            if self.process.poll() is not None or time.monotonic() > deadline:
                console = self.folder / "console.log"
                sys.exit(f"no {what} within {seconds} s (exit code {self.process.poll()})\n"
                         + (console.read_text()[-2000:] if console.exists() else ""))
            time.sleep(0.01)

    def end(self):
        for rank in self.ranks():
            with contextlib.suppress(ProcessLookupError):
                os.kill(rank, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def seconds_to_read(path):
    """Of the file's bytes, into one buffer."""
    began = time.monotonic()
    buffer = bytearray(8 << 20)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
    return time.monotonic() - began


def measure(arguments):
    output = arguments.output.absolute()
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    write_tokens(output / "random", arguments.tokens)
    folder = output / "run"
    launcher = arguments.launcher.format(ranks=arguments.ranks)
    command = [arguments.bin / "trireme-pretrain", arguments.deck, f"data.train={output / 'random'}", "data.split=98,2,0",
               f"run.output={folder}", "log.every=1", "log.tensorboard.enable=false", "train.iterations=100000",
               f"checkpoint.every={arguments.every}", "checkpoint.keep=1", "evaluate.at_end=false", *arguments.words,
               f"--supervise={launcher}"]
    rows = []
    run = Run(list(map(str, command)), folder)
    try:
        run.wait_until(lambda: run.events("train"), "first iteration", arguments.patience)
        rows.append(("start to the end of the first step", f"{time.monotonic() - run.began:.2f} s"))
        run.wait_until(lambda: run.events("checkpoint"), "checkpoint", arguments.patience)
        saved = run.events("checkpoint")[0]
        # Up to the next save: steps after this one show how much the GPUs slow down by themselves.
        run.wait_until(lambda: run.events("train")[-1]["iteration"] >= saved["iteration"] + max(arguments.every - 2, 4),
                       "later iteration", arguments.patience)
        train = run.events("train")
        rank, killed = random.choice(run.ranks()), time.monotonic()
        os.kill(rank, signal.SIGKILL)
        run.wait_until(lambda: len(run.events("start")) > 1, "second start", arguments.patience)
        run.wait_until(lambda: run.events("train")[-1]["iteration"] > saved["iteration"]
                       and run.events("train")[-1]["time"] > run.events("start")[-1]["time"], "iteration after the kill",
                       arguments.patience)
        rows.append(("kill to the end of the next step", f"{time.monotonic() - killed:.2f} s"))
    finally:
        run.end()
    first, path = saved["iteration"], Path(saved["path"])
    before = [each["ms"] for each in train if 3 < each["iteration"] <= first]
    # The step whose update waits for the copies, and those while the file is written.
    meanwhile = [each["ms"] for each in train
                 if each["iteration"] > first + 1 and each["time"] <= saved["time"]] or [float("nan")]
    next_step = [each["ms"] for each in train if each["iteration"] == first + 1]
    after = [each["ms"] for each in train if each["time"] > saved["time"] + 1e-3 * each["ms"]
             and each["iteration"] < first + arguments.every] or [float("nan")]
    # The next save waits until this one is written: that is no time of the copies.
    too_often = saved["seconds"] > 1e-3 * arguments.every * statistics.median(before)
    waits = f"{saved.get('stall_seconds', saved['seconds']):.3f} s"
    rows += [("checkpoint", f"{saved['bytes'] / 1e9:.2f} GB in {saved['seconds']:.1f} s"),
             ("training waits for it", f"{waits}, with the next save's wait: give a longer --every" if too_often else waits),
             ("step before; the next one; while it is written; afterwards",
              f"{statistics.median(before):.1f} ms; {next_step[0]:.1f} ms; {statistics.median(meanwhile):.1f} ms "
              f"(longest {max(meanwhile):.1f} of {len(meanwhile)}); {statistics.median(after):.1f} ms (of {len(after)})")]
    loaded = re.findall(r"loaded checkpoint .* in ([\d.]+) s\)", (folder / "console.log").read_text())
    newest = path if path.exists() else sorted(path.parent.glob("*.h5"))[-1]
    seconds_to_read(newest)
    reading = seconds_to_read(newest)
    rows.append(("loading it; reading its bytes", f"{loaded[-1] if loaded else '-'} s; {reading:.2f} s"))
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")
    shutil.rmtree(output, ignore_errors=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("deck", type=Path)
    parser.add_argument("words", nargs="*", help="overrides of the deck")
    parser.add_argument("--bin", type=Path, required=True, help="the folder of the programs")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--launcher", default="mpirun --oversubscribe --bind-to none -n {ranks}")
    parser.add_argument("--every", type=int, default=20, help="iterations between checkpoints")
    parser.add_argument("--tokens", type=int, default=4_000_000, help="of the data")
    parser.add_argument("--output", type=Path, default=Path("restart-time"), help="a folder that is deleted")
    parser.add_argument("--patience", type=float, default=120.0, help="seconds for each of the steps")
    measure(parser.parse_args())
