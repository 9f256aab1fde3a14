"""A timetable of faults against runs on host ranks: each fault must be detected, end the run with the
right exit code or none, and leave a run that continues with the losses and weights of an unharmed one.

Without arguments one fault of each kind (the test `faults`); `--count 1000 --seed 7` any number of them
at random moments and on random layouts; `--only kill,stop` these kinds. Prints a table. The environment is that of
tests/regression/runs.py, and TRIREME_IO_FAULTS names the library that makes storage fail.
"""

import argparse
import contextlib
import json
import math
import os
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "regression"))

from runs import (DATA, FINISHED, IO, MPIEXEC, BIN, PATIENCE, STOPPED_EARLY, RunTest, Started,  # noqa: E402
                  layout_words, run)

CORRUPTED = 77

LIBRARY = os.environ["TRIREME_IO_FAULTS"]
ITERATIONS = 96  # a fault comes soon after the first checkpoint: the others are the time that a busy machine has
EVERY = 8
# Seconds; nothing waits as long unless a rank is stopped.
TIMEOUT = 10
# Quick iterations: faults, not the model, take the time.
WORDS = [f"train.iterations={ITERATIONS}", "model.layers=2", "batch.micro=4"]
LAYOUTS = [(2, 1, 1), (1, 2, 1), (1, 1, 2)]
MANY_RANKS = (2, 2, 1)  # among random layouts
ARGUMENTS = argparse.Namespace(count=None, seed=7, only=None)
DATA_PARALLEL = (1, 1, 2)
# Open MPI's messages through TCP, which the fault library reaches.
TCP = ["--mca", "pml", "ob1", "--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "lo"]


class Case:
    """One fault: its random choices, and what came of it."""

    def __init__(self, kind, number, chance):
        self.kind, self.chance = kind, chance
        self.name = f"{number:04}-{kind}"
        self.layout = chance.choice([*LAYOUTS, *LAYOUTS, MANY_RANKS])
        self.zero = chance.choice([1, 2, 3])
        self.background = chance.random() < 0.5
        self.detected = self.lost = None
        self.code = FINISHED

    @property
    def ranks(self):
        return math.prod(self.layout)

    def layout_words(self):
        return [*layout_words(*self.layout), *([f"parallel.zero={self.zero}"] if self.layout[2] > 1 else [])]

    def layout_name(self):
        return "x".join(map(str, self.layout)) + (f" z{self.zero}" if self.layout[2] > 1 else "")

    def words(self):
        return [*self.layout_words(), *WORDS, f"checkpoint.every={EVERY}", "checkpoint.keep=3",
                f"comm.timeout={TIMEOUT} seconds",
                f"checkpoint.async={str(self.background).lower()}"]


class Faults(RunTest):
    # ------------------------------------------------------------------------ runs

    def begin(self, case, *words, launcher=(), **environment):
        """Starts the run of `case`, with the settings of the fault library."""
        settings = [f"LD_PRELOAD={LIBRARY}", *(f"TRIREME_{k}={v}" for k, v in environment.items())]
        return Started([MPIEXEC, "--oversubscribe", "--bind-to", "none", *launcher, "-n", str(case.ranks), "env",
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

    def continues(self, case, *words, before=None):
        """Finishes the run, whose losses and weights must be those of an unharmed one."""
        before = self.reached(case.name) if before is None else before
        with self.begin(case, *words) as started:
            result = started.finish()
        self.assertEqual(result.code, FINISHED, f"{case.name}\n{result}")
        found = re.search(r"restart +from .*, iteration (\d+)", result.out)
        case.lost = max(before - int(found.group(1)), 0) if found else before
        self.compare(case)
        return result

    def unharmed(self, case):
        """The name of an unharmed run on the layout of `case`."""
        whole = f"whole-{case.layout_name().replace(' ', '-')}"
        if not (self.folder / whole).exists():
            self.pretrain(whole, *case.layout_words(), *WORDS, ranks=case.ranks)
        return whole

    def compare(self, case):
        whole = self.unharmed(case)
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
        stacks = [path.read_text() for path in (self.folder / case.name / "ranks").glob("*.stacks")]
        self.assertRegex("".join(stacks), r"\[rank \d on \S+\] +main \(trireme-pretrain\+")

    def stop_resumed(self, case):
        """A rank hangs after a restart and before the first save since: the run can resume again."""
        self.partly_done(case)
        before = self.reached(case.name)
        with self.begin(case, "checkpoint.every=90") as started:
            self.wait_until(lambda: self.reached(case.name) > before, started)
            since = time.monotonic()
            os.kill(case.chance.choice(started.children()), signal.SIGSTOP)
            self.ended(case, started, [STOPPED_EARLY], since)
        self.continues(case)

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

    def signal_once(self, case):
        """A rank gets one of the signals that ask for a stop."""
        number = case.chance.choice([signal.SIGUSR1, signal.SIGTERM, signal.SIGINT])
        self.signalled(case, number, [STOPPED_EARLY, FINISHED])

    def pause(self, case):
        """A rank stands still for less than the time limit."""
        with self.begin(case) as started:
            self.wait_for_moment(case, started)
            rank = case.chance.choice(started.children())
            os.kill(rank, signal.SIGSTOP)
            time.sleep(2)
            os.kill(rank, signal.SIGCONT)
            self.ended(case, started, [FINISHED], time.monotonic())
        case.detected, case.lost = None, 0
        self.compare(case)

    def kill_launcher(self, case):
        """mpirun is killed: its ranks must end."""
        with self.begin(case) as started:
            self.wait_for_moment(case, started)
            ranks, since = started.children(), time.monotonic()
            os.kill(started.process.pid, signal.SIGKILL)
            started.finish()
            while any(Path(f"/proc/{rank}/stat").exists() for rank in ranks):
                self.assertLess(time.monotonic() - since, PATIENCE, "the ranks outlive their launcher")
                time.sleep(0.05)
            case.detected, case.code = time.monotonic() - since, 128 + 9
        self.continues(case)

    def kill_in_save(self, case):
        """A rank dies while a checkpoint is written."""
        folder = self.folder / case.name / "checkpoints"
        with self.begin(case, FAULT="slow") as started:
            self.wait_until(lambda: self.checkpoints(case.name) and list(folder.glob("*.part")), started)
            since = time.monotonic()
            os.kill(case.chance.choice(started.children()), signal.SIGKILL)
            self.ended(case, started, [128 + 9, STOPPED_EARLY], since)
        self.continues(case)

    def kill_new_layout(self, case):
        """A rank dies, and the run resumes on another layout: the same losses up to rounding."""
        with self.begin(case) as started:
            self.wait_for_moment(case, started)
            since = time.monotonic()
            os.kill(case.chance.choice(started.children()), signal.SIGKILL)
            self.ended(case, started, [128 + 9, STOPPED_EARLY, 0], since)
        before = self.reached(case.name)
        saved = int(self.latest(case.name).stem.removeprefix("step-"))
        whole = self.losses(self.unharmed(case))
        case.layout = case.chance.choice([layout for layout in [*LAYOUTS, MANY_RANKS] if layout != case.layout])
        with self.begin(case) as started:
            result = started.finish()
        self.assertEqual(result.code, FINISHED, f"{case.name}\n{result}")
        case.lost = max(before - saved, 0)
        losses = self.losses(case.name)
        self.assertEqual(losses[:saved], whole[:saved], case.name)
        self.assert_close(losses, whole, 1e-5, f"resumed on {case.layout_name()}")

    def signal_in_save(self, case):
        """A rank is asked to stop while a checkpoint is written in the background: it is completed first."""
        case.background = True
        folder = self.folder / case.name / "checkpoints"
        with self.begin(case, FAULT="slow", FAULT_COUNT=200) as started:
            self.wait_until(lambda: self.checkpoints(case.name) and list(folder.glob("*.part")), started)
            since = time.monotonic()
            os.kill(case.chance.choice(started.children()), case.chance.choice([signal.SIGTERM, signal.SIGUSR1]))
            self.ended(case, started, [STOPPED_EARLY, FINISHED], since)
        self.assertEqual(list(folder.glob("*.part*")), [], case.name)
        self.assertEqual(int(self.latest(case.name).stem.removeprefix("step-")), self.reached(case.name))
        self.continues(case)

    def second_run(self, case):
        """A second run starts in the same folder: it is refused, and harms nothing."""
        with self.begin(case, FAULT="slow", FAULT_COUNT=250) as started:
            self.wait_for_moment(case, started)
            with self.begin(case) as second:
                result = second.finish()
            still = started.running()
            self.ended(case, started, [FINISHED], time.monotonic())
        if still:
            self.assertEqual(result.code, IO, result)
            self.assertIn("another run is using the run folder", result.err)
        case.detected, case.lost = None, 0
        self.compare(case)

    def memory_pressure(self, case):
        """A rank can have no more memory from some moment on: the run finishes without, or ends with a
        message."""
        with self.begin(case) as started:
            self.wait_for_moment(case, started)
            rank, since = case.chance.choice(started.children()), time.monotonic()
            status = Path(f"/proc/{rank}/status").read_text()
            used = 1024 * int(re.search(r"VmSize:\s+(\d+)", status).group(1))
            resource.prlimit(rank, resource.RLIMIT_AS, (used, used))
            self.ended(case, started, [FINISHED, 1, IO, STOPPED_EARLY, 70], since)
        if case.code == FINISHED:
            case.detected = None
        self.continues(case)

    # ------------------------------------------------------------------------ network and clock

    def network_cut(self, case):
        """From some message on, of 2,000 or more, nothing arrives any more: the time limit ends the run."""
        with self.begin(case, launcher=TCP, FAULT="cut", FAULT_RANK=case.chance.randrange(2),
                        FAULT_AFTER=case.chance.randrange(1000, 1600)) as started:
            # 70 before the first checkpoint.
            self.ended(case, started, [STOPPED_EARLY, 70], time.monotonic())
        case.detected = time.time() - max([0, *(each["time"] for each in self.events(case.name, "train"))])
        self.continues(case)

    def slow_link(self, case):
        with self.begin(case, launcher=TCP, FAULT="slow-link", FAULT_AFTER=500,
                        FAULT_COUNT=1000) as started:
            self.ended(case, started, [FINISHED], time.monotonic())
        case.detected, case.lost = None, 0
        self.compare(case)

    def clock_jumps(self, case):
        """The wall clock jumps by a day, again and again."""
        with self.begin(case, FAULT="clock") as started:
            self.ended(case, started, [FINISHED], time.monotonic())
        case.detected, case.lost = None, 0
        self.compare(case)

    # ------------------------------------------------------------------------ storage

    def slow_disk(self, case):
        with self.begin(case, FAULT="slow", FAULT_COUNT=60) as started:
            self.ended(case, started, [FINISHED], time.monotonic())
        case.detected, case.lost = None, 0
        self.compare(case)

    def read_only(self, case):
        """The file system becomes read-only."""
        with self.begin(case, FAULT="erofs", FAULT_AFTER=4) as started:
            result = self.ended(case, started, [IO], time.monotonic())
        self.assertRegex(result.err, "cannot .*step-.*: Read-only file system")
        self.continues(case)

    def no_descriptors(self, case):
        with self.begin(case, FAULT="emfile", FAULT_AFTER=6) as started:
            result = self.ended(case, started, [IO], time.monotonic())
        self.assertRegex(result.err, "cannot .*step-.*: Too many open files")
        self.continues(case)

    def latest_lost(self, case):
        """The file `latest` is gone, or names no checkpoint."""
        newest = self.partly_done(case)
        latest = newest.parent / "latest"
        latest.unlink()
        if case.chance.random() < 0.5:
            latest.write_text("step-99999999.h5\n")
        result = self.continues(case)
        self.assertIn("the newest complete checkpoint", result.out)

    def metrics_cut(self, case):
        """metrics.jsonl has lost the end of its last line."""
        self.partly_done(case)
        path = self.folder / case.name / "metrics.jsonl"
        os.truncate(path, path.stat().st_size - 1 - case.chance.randrange(20))
        self.continues(case)

    # ------------------------------------------------------------------------ local checkpoints

    def local_words(self, case):
        return [f"checkpoint.local.path={self.folder / case.name}-local", "checkpoint.local.every=2"]

    def local_shards(self, case):
        return sorted((self.folder / f"{case.name}-local").glob("*/*.shard"))

    def local_kill(self, case):
        """A rank dies between two shared checkpoints: the run resumes from a newer local one."""
        words = [*self.local_words(case), "checkpoint.every=40"]
        with self.begin(case, *words) as started:
            self.wait_until(lambda: len(self.local_shards(case)) >= 4, started)
            since = time.monotonic()
            os.kill(case.chance.choice(started.children()), signal.SIGKILL)
            self.ended(case, started, [128 + 9, STOPPED_EARLY], since)
        result = self.continues(case, *words)
        self.assertIn("from the local checkpoint in ", result.out)
        return result

    def local_kill_in_save(self, case):
        """A rank dies while a shared checkpoint is written, after local ones: the newer of what is complete."""
        case.background = True
        words = self.local_words(case)
        folder = self.folder / case.name / "checkpoints"
        with self.begin(case, *words, FAULT="slow") as started:
            self.wait_until(lambda: self.checkpoints(case.name) and list(folder.glob("*.part")), started)
            since = time.monotonic()
            os.kill(case.chance.choice(started.children()), signal.SIGKILL)
            self.ended(case, started, [128 + 9, STOPPED_EARLY], since)
        self.continues(case, *words)

    def local_partly_done(self, case):
        # Without a checkpoint in flight each local one is newer than the shared ones before it.
        case.background = False
        with self.begin(case, *self.local_words(case), f"train.exit_interval={2 * EVERY + 7}") as started:
            self.assertEqual(started.finish().code, FINISHED, case.name)
        self.latest(case.name).unlink()
        self.assertTrue(self.local_shards(case))

    def local_lost(self, case):
        """One rank's disk is lost: the run resumes from the shared file system."""
        self.local_partly_done(case)
        for shard in self.local_shards(case):
            if "rank-00001" in shard.name:
                shard.unlink()
        result = self.continues(case, *self.local_words(case))
        self.assertRegex(result.out, "restart +the local checkpoint of iteration .* lacks the shards of 1 rank")

    def local_flipped(self, case):
        """A byte of the newest local checkpoint is flipped: an older one is used."""
        self.local_partly_done(case)
        newest = self.local_shards(case)[-1]
        content = bytearray(newest.read_bytes())
        content[case.chance.randrange(len(content))] ^= 1 << case.chance.randrange(8)
        newest.write_bytes(content)
        result = self.continues(case, *self.local_words(case))
        self.assertIn("is not a readable local checkpoint", result.out)

    # ------------------------------------------------------------------------ silent data corruption

    def flip_once(self, case, target=None):
        """A bit flips in one of the two runs of a step: a third one decides."""
        case.layout, case.zero = case.layout if target != "messages" else DATA_PARALLEL, 1
        rank, at = case.chance.randrange(2), case.chance.randrange(20, 50)
        target = target or case.chance.choice(["gradients", "activations", "messages"])
        with self.begin(case, f"train.verify.step_every={at}",
                        f"train.verify.inject={target} rank={rank} iteration={at}") as started:
            result = self.ended(case, started, [FINISHED], time.monotonic())
        warnings = [event for event in self.events(case.name, "warning")
                    if event["message"].startswith("silent data corruption: ")]
        self.assertEqual([event["iteration"] for event in warnings], [at], result)
        self.assertIn(f"rank {rank} (", warnings[0]["message"])
        self.assertIn("a third run agrees", warnings[0]["message"])
        case.detected, case.lost = 0.0, 0
        self.compare(case)

    def flip_gradient(self, case):
        self.flip_once(case, "gradients")

    def flip_activation(self, case):
        self.flip_once(case, "activations")

    def flip_message(self, case):
        self.flip_once(case, "messages")

    def flip_always(self, case):
        """A rank computes wrong results each time: the run stops before it uses one, and names the rank."""
        rank, at = case.chance.randrange(2), case.chance.randrange(20, 50)
        target = case.chance.choice(["gradients", "activations"])
        with self.begin(case, f"train.verify.step_every={at}",
                        f"train.verify.inject={target} rank={rank} iteration={at} times=9") as started:
            result = self.ended(case, started, [CORRUPTED], time.monotonic())
        self.assertRegex(result.err, rf"silent data corruption: .* on rank {rank} \(.*so does a third run")
        self.assertEqual(self.stop_event(case.name)["exit_code"], CORRUPTED)
        self.assertTrue((self.folder / case.name / "suspect-hosts").read_text().strip())
        self.continues(case)

    def flip_weight(self, case):
        """A replica of a weight changes: the run stops before its gradients are used."""
        case.layout, case.zero = DATA_PARALLEL, 1
        at = case.chance.randrange(20, 50)
        # Half of the weights, which a rank updates, and its copy of the other half.
        element = case.chance.choice([0, 10**9])
        with self.begin(case, "train.verify.weights_every=1",
                        f"train.verify.inject=weights rank=1 iteration={at} element={element}") as started:
            result = self.ended(case, started, [CORRUPTED], time.monotonic())
        self.assertRegex(result.err, "silent data corruption: in iteration .* replicas of weights differ: "
                                     "the weights embedding/word on rank 0 .*, and the weights embedding/word on rank 1")
        self.continues(case)

    def flip_spike(self, case):
        """A high bit of an activation flips in a step that does not run twice: its gradient is a spike or
        not finite, so that the step runs again."""
        case.layout, case.zero = DATA_PARALLEL, 1
        with self.begin(case, "train.verify.step_every=1000",
                        "train.verify.inject=gradients rank=1 iteration=30 bit=30") as started:
            self.ended(case, started, [FINISHED], time.monotonic())
        warnings = [event["message"] for event in self.events(case.name, "warning")]
        self.assertRegex(" ".join(warnings), "silent data corruption: the gradient .* but not in a second run")
        case.detected, case.lost = 0.0, 0
        self.compare(case)

    # ------------------------------------------------------------------------ storage fails

    def write_error(self, case):
        """Storage fails from then on: the second failed background save ends the run, the first other one."""
        fault = case.chance.choice(["eio", "enospc"])
        # After the trial save of the start, which takes up to a dozen writes.
        with self.begin(case, FAULT=fault, FAULT_RANK=case.chance.randrange(2),
                        FAULT_AFTER=30) as started:
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
        self.continues(case, before=3 * EVERY)  # the older one

    def supervised(self, case):
        """A rank dies twice under --supervise, which starts the run again, the second time without its host."""
        hosts = self.folder / f"{case.name}-hosts"
        own = socket.gethostname()
        hosts.write_text(f"{own}\n" * case.ranks + "localhost\n" * case.ranks)  # one slot each
        command = [BIN / "trireme-pretrain", *self.deck_words(case.name, *case.words()),
                   f"--supervise={MPIEXEC} --oversubscribe --bind-to none --hostfile {hosts} -n {case.ranks}"]
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
        self.assertIn(f"{own} lost a rank in 2 starts and is left out from now on", result.err)
        self.assertRegex(result.err, r"supervise: goodput \d+\.\d % of .* in 3 starts: ")
        goodput = json.loads(run("trireme-report", "goodput", self.folder / case.name, "--json").out)
        case.lost = goodput["lost_iterations"]
        self.compare(case)

    def supervised_wrong_host(self, case):
        """A host computes wrong results under --supervise: it is left out of the launcher's host file, which
        then has none."""
        hosts = self.folder / f"{case.name}-hosts"
        own = socket.gethostname()
        hosts.write_text(f"{own} slots={case.ranks}\n# no spare\n")
        command = [BIN / "trireme-pretrain", *self.deck_words(case.name, *case.words()), "train.verify.step_every=20",
                   "train.verify.inject=gradients rank=1 iteration=20 times=9",
                   f"--supervise={MPIEXEC} --oversubscribe --bind-to none --hostfile {hosts} -n {case.ranks}"]
        with Started(command) as started:
            result = started.finish()
        self.assertEqual(result.code, 1, result)  # mpirun's
        self.assertIn(f"silent data corruption on {own}, which is left out from now on", result.err)
        left = self.folder / case.name / "hosts-without-suspects"
        self.assertEqual(left.read_text(), "# no spare\n")
        case.code = result.code
        self.continues(case)

    KINDS = ["kill", "kill_all", "kill_in_save", "kill_new_layout", "kill_launcher", "second_run", "stop",
             "stop_resumed", "pause", "signal_once", "signal_storm", "signal_in_save", "memory_pressure",
             "clock_jumps", "network_cut", "slow_link", "slow_disk", "read_only", "no_descriptors", "write_error",
             "write_error_once", "short_writes", "truncated", "flipped", "latest_lost", "metrics_cut", "local_kill",
             "local_kill_in_save", "local_lost", "local_flipped", "flip_gradient", "flip_activation", "flip_message",
             "flip_always", "flip_weight", "flip_spike", "supervised", "supervised_wrong_host"]

    # ------------------------------------------------------------------------ the timetable

    def test_timetable(self):
        chance = random.Random(ARGUMENTS.seed)
        kinds = self.KINDS
        if ARGUMENTS.only:
            kinds = ARGUMENTS.only.split(",")
        if ARGUMENTS.count is not None:
            kinds = [chance.choice(kinds) for _ in range(ARGUMENTS.count)]
        print(f"\n{'fault':<24} {'layout':<8} {'save':<10} {'detected':>10} {'lost steps':>10} "
              f"{'exit code':>9} continuation", flush=True)
        failures = []
        for number, kind in enumerate(kinds):
            case = Case(kind, number, random.Random(chance.random()))
            if ARGUMENTS.count is None:
                case.layout = LAYOUTS[0]
                case.background = number % 2 == 1
            try:
                getattr(self, kind)(case)
            except (AssertionError, subprocess.TimeoutExpired, OSError) as failure:
                failures.append(f"{case.name}: {failure}")
                print(f"{kind.replace('_', ' '):<24} {case.layout_name():<8} FAILED\n{failures[-1]}", flush=True)
                continue
            detected = "-" if case.detected is None else f"{case.detected:.1f} s"
            print(f"{kind.replace('_', ' '):<24} {case.layout_name():<8} "
                  f"{'async' if case.background else 'sync':<10} {detected:>10} {case.lost:>10} "
                  f"{case.code:>9} equal", flush=True)
            for path in self.folder.glob(f"{case.name}*"):  # a thousand of them would fill a disk
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.assertFalse(failures, "\n\n".join(failures))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, help="faults; default: one of each kind")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--only", help="kinds, separated by commas")
    ARGUMENTS, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest], verbosity=1)
