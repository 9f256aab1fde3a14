"""A timetable of faults against runs on host ranks: each fault must be detected, end the run with the
right exit code or none, and leave a run that continues with the losses and weights of an unharmed one.

Without arguments one fault of each kind (the test `faults`); `--count 1000 --seed 7` any number of them
at random moments and on random layouts. Prints a table. The environment is that of
tests/regression/runs.py, and TRIREME_IO_FAULTS names the library that makes storage fail.
"""

import argparse
import contextlib
import json
import os
import random
import re
import signal
import sys
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "regression"))

from runs import (DATA, FINISHED, IO, MPIEXEC, BIN, STOPPED_EARLY, RunTest, Started,  # noqa: E402
                  layout_words, run)

LIBRARY = os.environ["TRIREME_IO_FAULTS"]
ITERATIONS = 80
EVERY = 8
# Seconds; nothing waits as long unless a rank is stopped.
TIMEOUT = 5
# Quick iterations: faults, not the model, take the time.
WORDS = [f"train.iterations={ITERATIONS}", "model.layers=2", "batch.micro=4"]
LAYOUTS = [(2, 1, 1), (1, 2, 1), (1, 1, 2)]
ARGUMENTS = argparse.Namespace(count=None, seed=7)


class Case:
    """One fault: its random choices, and what came of it."""

    def __init__(self, kind, number, chance):
        self.kind, self.chance = kind, chance
        self.name = f"{number:04}-{kind}"
        self.layout = chance.choice(LAYOUTS)
        self.background = chance.random() < 0.5
        self.detected = self.lost = None
        self.code = FINISHED

    def words(self):
        return [*layout_words(*self.layout), *WORDS, f"checkpoint.every={EVERY}", "checkpoint.keep=3",
                f"comm.timeout={TIMEOUT} seconds",
                f"checkpoint.async={str(self.background).lower()}"]


class Faults(RunTest):
    # ------------------------------------------------------------------------ runs

    def begin(self, case, *words, **environment):
        """Starts the run of `case` on two ranks, with the settings of the fault library."""
        settings = [f"LD_PRELOAD={LIBRARY}", *(f"TRIREME_{k}={v}" for k, v in environment.items())]
        return Started([MPIEXEC, "--oversubscribe", "--bind-to", "none", "-n", "2", "env",
                        *(settings if environment else []), BIN / "trireme-pretrain",
                        *self.deck_words(case.name, *case.words(), *words)])

    def reached(self, name):
        train = self.events(name, "train")
        return train[-1]["iteration"] if train else 0

    def wait_for_moment(self, case, started):
        """Waits for a checkpoint and then for a random moment before the run ends."""
        self.wait_until(lambda: self.checkpoints(case.name), started)
        time.sleep(case.chance.uniform(0, 0.1))

    def ended(self, case, started, codes, since):
        result = started.finish()
        case.detected = time.monotonic() - since
        case.code = result.code
        self.assertIn(result.code, codes, f"{case.name}\n{result}")
        return result

    def continues(self, case, before=None):
        """Finishes the run, whose losses and weights must be those of an unharmed one."""
        before = self.reached(case.name) if before is None else before
        with self.begin(case) as started:
            result = started.finish()
        self.assertEqual(result.code, FINISHED, f"{case.name}\n{result}")
        found = re.search(r"restart +from .*, iteration (\d+)", result.out)
        case.lost = max(before - int(found.group(1)), 0) if found else before
        self.compare(case)
        return result

    def compare(self, case):
        layout = "-".join(map(str, case.layout))
        whole = f"whole-{layout}"
        if not (self.folder / whole).exists():
            self.pretrain(whole, *layout_words(*case.layout), *WORDS, ranks=2)
        self.assertEqual(self.losses(case.name), self.losses(whole), case.name)
        self.assertEqual(self.inspect(self.latest(case.name))["tensors"],
                         self.inspect(self.latest(whole))["tensors"], case.name)
        left = list((self.folder / case.name / "checkpoints").glob("*.part*"))
        self.assertEqual(left, [], case.name)

    # ------------------------------------------------------------------------ faults

    def signalled(self, case, number, codes, everyone=False):
        with self.begin(case) as started:
            self.wait_for_moment(case, started)
            ranks = started.children()
            self.assertTrue(ranks, "the run ended before the fault")
            since = time.monotonic()
            for rank in ranks if everyone else [case.chance.choice(ranks)]:
                os.kill(rank, number)
            result = self.ended(case, started, codes, since)
        self.continues(case)
        return result

    def kill(self, case):
        """A rank dies; mpirun's own code, or that of a rank that noticed it first."""
        self.signalled(case, signal.SIGKILL, [128 + 9, STOPPED_EARLY, 0])

    def kill_all(self, case):
        self.signalled(case, signal.SIGKILL, [128 + 9, 0], everyone=True)

    def stop(self, case):
        """A rank hangs."""
        result = self.signalled(case, signal.SIGSTOP, [STOPPED_EARLY])
        self.assertRegex(result.err, r"rank \d on \S+: .* \(comm.timeout\).*no answer from rank \d on ")

    def signal_storm(self, case):
        with self.begin(case) as started:
            self.wait_for_moment(case, started)
            since = time.monotonic()
            # To the ranks: Open MPI's launcher dies of signals that reach it after its last rank has ended.
            for _ in range(50):
                for rank in started.children():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(rank, signal.SIGUSR1)
                time.sleep(0.002)
            self.ended(case, started, [STOPPED_EARLY, FINISHED], since)
        self.continues(case)

    def write_error(self, case):
        """Storage fails from then on: the second failed background save ends the run, the first other one."""
        fault = case.chance.choice(["eio", "enospc"])
        with self.begin(case, FAULT=fault, FAULT_RANK=case.chance.randrange(2),
                        FAULT_AFTER=8) as started:
            result = self.ended(case, started, [IO], time.monotonic())
        self.assertRegex(result.err, "cannot .*step-.*: (Input/output error|No space left on device)")
        if case.background:
            self.assertIn("no checkpoint: cannot ", result.out)
        self.continues(case)

    def write_error_once(self, case):
        """A background save fails once: a warning, and the run finishes."""
        case.background = True
        with self.begin(case, FAULT="eio", FAULT_RANK=1, FAULT_AFTER=8, FAULT_COUNT=1) as started:
            result = self.ended(case, started, [FINISHED], time.monotonic())
        case.detected = None
        warnings = [event["message"] for event in self.events(case.name, "warning")]
        self.assertEqual(sum(text.startswith("no checkpoint: cannot ") for text in warnings), 1, result)
        case.lost = 0
        self.compare(case)

    def short_writes(self, case):
        with self.begin(case, FAULT="short") as started:
            self.ended(case, started, [FINISHED], time.monotonic())
        case.detected, case.lost = None, 0
        self.compare(case)

    def partly_done(self, case):
        """A run that was stopped after two checkpoints or more; its newest one."""
        with self.begin(case, f"train.exit_interval={3 * EVERY}") as started:
            self.assertEqual(started.finish().code, FINISHED, case.name)
        return self.latest(case.name)

    def truncated(self, case):
        """The newest checkpoint has lost its end: the run resumes from the one before."""
        newest = self.partly_done(case)
        os.truncate(newest, case.chance.randrange(newest.stat().st_size))
        result = self.continues(case)
        self.assertIn("the newest complete checkpoint", result.out)

    def flipped(self, case):
        """A byte of the newest checkpoint is flipped. In its structure: the run resumes from the one
        before. In a tensor: it refuses to start, and resumes when the file is moved away."""
        newest = self.partly_done(case)
        content = bytearray(newest.read_bytes())
        content[case.chance.randrange(len(content))] ^= 1 << case.chance.randrange(8)
        newest.write_bytes(content)
        verified = run("trireme-inspect", newest, "--verify")
        self.assertEqual(verified.code, DATA, verified)
        self.assertRegex(verified.err, "structure is damaged|not a readable checkpoint|tensors are damaged")
        if "tensors are damaged" not in verified.err:
            self.continues(case)
            return
        with self.begin(case) as started:
            result = self.ended(case, started, [DATA], time.monotonic())
        self.assertRegex(result.err, "tensor '.*' is damaged")
        newest.unlink()
        self.continues(case, before=3 * EVERY)

    def supervised(self, case):
        """A rank dies twice under --supervise, which starts the run again by itself."""
        command = [BIN / "trireme-pretrain", *self.deck_words(case.name, *case.words()),
                   f"--supervise={MPIEXEC} --oversubscribe --bind-to none -n 2"]
        with Started(command) as started:
            for _ in range(2):
                before = self.checkpoints(case.name)
                self.wait_until(lambda: self.checkpoints(case.name) > before, started)
                launcher = started.children()[0]
                ranks = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
                os.kill(int(case.chance.choice(ranks)), signal.SIGKILL)
            result = started.finish()
        self.assertEqual(result.code, FINISHED, result)
        self.assertEqual(len(re.findall("starting it again in", result.err)), 2, result)
        self.assertRegex(result.err, r"supervise: goodput \d+\.\d % of .* in 3 starts: ")
        goodput = json.loads(run("trireme-report", "goodput", self.folder / case.name, "--json").out)
        case.lost = goodput["lost_iterations"]
        self.compare(case)

    KINDS = ["kill", "kill_all", "stop", "signal_storm", "write_error", "write_error_once",
             "short_writes", "truncated", "flipped", "supervised"]

    # ------------------------------------------------------------------------ the timetable

    def test_timetable(self):
        chance = random.Random(ARGUMENTS.seed)
        kinds = self.KINDS + ["kill"]  # once with each way to save
        if ARGUMENTS.count is not None:
            kinds = [chance.choice(self.KINDS) for _ in range(ARGUMENTS.count)]
        print(f"\n{'fault':<24} {'layout':<8} {'save':<10} {'detected':>10} {'lost steps':>10} "
              f"{'exit code':>9} continuation", flush=True)
        for number, kind in enumerate(kinds):
            case = Case(kind, number, random.Random(chance.random()))
            if ARGUMENTS.count is None:
                case.layout = LAYOUTS[0]
                case.background = number % 2 == 1
            getattr(self, kind)(case)
            detected = "-" if case.detected is None else f"{case.detected:.1f} s"
            print(f"{kind.replace('_', ' '):<24} {'x'.join(map(str, case.layout)):<8} "
                  f"{'async' if case.background else 'sync':<10} {detected:>10} {case.lost:>10} "
                  f"{case.code:>9} equal", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, help="faults; default: one of each kind")
    parser.add_argument("--seed", type=int, default=7)
    ARGUMENTS, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest], verbosity=1)
