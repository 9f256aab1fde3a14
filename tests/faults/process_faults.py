"""Faults of processes, networks, clocks and memory."""

import contextlib
import json
import os
import re
import resource
import signal
import socket
import time
from pathlib import Path

from driver import ENDLESS, EVERY, ITERATIONS, KILLED, LAYOUTS, MANY_RANKS, SLOW_SAVE, TCP, Driver
from runs import BIN, FAILED, FINISHED, IO, MPIEXEC, PATIENCE, STOPPED_EARLY, Started, run


class ProcessFaults(Driver):
    def kill(self, case):
        """A rank dies; mpirun's own code, or that of a rank that noticed it first."""
        self.signalled(case, signal.SIGKILL, [KILLED, STOPPED_EARLY])

    def kill_all(self, case):
        self.signalled(case, signal.SIGKILL, [KILLED], everyone=True)

    def kill_in_save(self, case):
        """A rank dies while a checkpoint is written."""
        folder = self.folder / case.name / "checkpoints"
        with self.begin(case, ENDLESS, **SLOW_SAVE) as started:
            self.wait_until(lambda: self.checkpoints(case.name) and list(folder.glob("*.part")), started)
            since = time.monotonic()
            os.kill(case.chance.choice(self.ranks_of(started)), signal.SIGKILL)
            self.ended(case, started, [KILLED, STOPPED_EARLY], since)
        self.continues(case)

    def kill_new_layout(self, case):
        """A rank dies, and the run resumes on another layout: the same losses up to rounding, whose differences
        later iterations multiply."""
        with self.begin(case, ENDLESS) as started:
            self.wait_for_moment(case, started)
            since = time.monotonic()
            os.kill(case.chance.choice(self.ranks_of(started)), signal.SIGKILL)
            self.ended(case, started, [KILLED, STOPPED_EARLY], since)
        before = self.reached(case.name)
        saved = int(self.latest(case.name).stem.removeprefix("step-"))
        whole = self.losses(self.unharmed(case, (saved // ITERATIONS + 1) * ITERATIONS))
        case.layout = case.chance.choice([layout for layout in [*LAYOUTS, MANY_RANKS] if layout != case.layout])
        with self.begin(case) as started:
            result = started.finish()
        self.assertEqual(result.code, FINISHED, f"{case.name}\n{result}")
        case.lost = max(before - saved, 0)
        losses = self.losses(case.name)
        self.assertEqual(losses[:saved], whole[:saved], case.name)
        soon = saved + 2 * EVERY
        self.assert_close(losses[:soon], whole[:soon], 1e-5, f"resumed on {case.layout_name()}")
        self.assert_close(losses, whole, 1e-2, f"resumed on {case.layout_name()}, to the end")

    def kill_launcher(self, case):
        """mpirun is killed: its ranks must end."""
        with self.begin(case, ENDLESS) as started:
            self.wait_for_moment(case, started)
            ranks, since = self.ranks_of(started), time.monotonic()
            os.kill(started.process.pid, signal.SIGKILL)
            started.finish()
            while any(Path(f"/proc/{rank}/stat").exists() for rank in ranks):
                self.assertLess(time.monotonic() - since, PATIENCE, "the ranks outlive their launcher")
                time.sleep(0.05)
            case.detected, case.code = time.monotonic() - since, KILLED
        self.continues(case)

    def stop(self, case):
        """A rank hangs."""
        result = self.signalled(case, signal.SIGSTOP, [STOPPED_EARLY])
        self.assertRegex(result.err, r"rank \d on \S+: .* took longer than .*comm\.timeout.*no answer from rank \d on ")
        stacks = [path.read_text() for path in (self.folder / case.name / "ranks").glob("*.stacks")]
        self.assertRegex("".join(stacks), r"\[rank \d on \S+\] +main \(trireme-pretrain\+")

    def stop_resumed(self, case):
        """A rank hangs after a restart and before the first save since: the run can resume again."""
        self.partly_done(case)
        before = self.reached(case.name)
        with self.begin(case, ENDLESS, "checkpoint.every=100000") as started:
            self.wait_until(lambda: self.reached(case.name) > before, started)
            since = time.monotonic()
            os.kill(case.chance.choice(self.ranks_of(started)), signal.SIGSTOP)
            self.ended(case, started, [STOPPED_EARLY], since)
        self.continues(case)

    def stop_slow_disk(self, case):
        """A rank hangs after a checkpoint that training waited for, since the next one was due."""
        case.background = True
        with self.begin(case, ENDLESS, FAULT="slow") as started:
            self.wait_until(lambda: self.events(case.name, "checkpoint"), started)
            self.let_pass(case, 0.5)
            since = time.monotonic()
            os.kill(case.chance.choice(self.ranks_of(started)), signal.SIGSTOP)
            self.ended(case, started, [STOPPED_EARLY], since)
        self.continues(case)

    def pause(self, case):
        """A rank stands still for less than the time limit: the run trains on."""
        with self.begin(case, ENDLESS) as started:
            self.wait_for_moment(case, started)
            rank = case.chance.choice(self.ranks_of(started))
            os.kill(rank, signal.SIGSTOP)
            time.sleep(2)
            before = self.reached(case.name)
            os.kill(rank, signal.SIGCONT)
            self.wait_until(lambda: self.reached(case.name) > before + 1, started)
            os.kill(rank, signal.SIGUSR1)
            self.ended(case, started, [STOPPED_EARLY], time.monotonic())
        case.detected = None
        self.continues(case)

    def signal_once(self, case):
        """A rank gets one of the signals that ask for a stop."""
        number = case.chance.choice([signal.SIGUSR1, signal.SIGTERM, signal.SIGINT])
        self.signalled(case, number, [STOPPED_EARLY])

    def kill_in_start(self, case):
        """A rank dies while the run resumes: in MPI's start, while it loads, or soon after."""
        self.partly_done(case)
        with self.begin(case, ENDLESS) as started:
            self.wait_until(lambda: self.ranks_of(started), started)
            self.let_pass(case, 1.0)
            since = time.monotonic()
            os.kill(case.chance.choice(self.ranks_of(started)), signal.SIGKILL)
            self.ended(case, started, [KILLED, STOPPED_EARLY, FAILED], since)
        self.continues(case)

    def signal_in_start(self, case):
        """A rank is asked to stop while the run resumes: it does so after its first iteration, or, before it
        can catch signals, as any program."""
        self.partly_done(case)
        number = case.chance.choice([signal.SIGUSR1, signal.SIGTERM, signal.SIGINT])
        with self.begin(case, ENDLESS) as started:
            self.wait_until(lambda: self.ranks_of(started), started)
            self.let_pass(case, 1.0)
            since = time.monotonic()
            os.kill(case.chance.choice(self.ranks_of(started)), number)
            self.ended(case, started, [STOPPED_EARLY, 128 + number], since)
        self.continues(case)

    def signal_storm(self, case):
        with self.begin(case, ENDLESS) as started:
            self.wait_for_moment(case, started)
            since = time.monotonic()
            # To the ranks: Open MPI's launcher dies of signals that reach it after its last rank has ended.
            for _ in range(50):
                for rank in self.ranks_of(started):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(rank, signal.SIGUSR1)
                time.sleep(0.002)
            self.ended(case, started, [STOPPED_EARLY], since)
        self.continues(case)

    def signal_in_save(self, case):
        """A rank is asked to stop while a checkpoint is written in the background: it is completed first."""
        case.background = True
        folder = self.folder / case.name / "checkpoints"
        with self.begin(case, ENDLESS, **SLOW_SAVE, FAULT_COUNT=100) as started:
            self.wait_until(lambda: self.checkpoints(case.name) and list(folder.glob("*.part")), started)
            since = time.monotonic()
            os.kill(case.chance.choice(self.ranks_of(started)), case.chance.choice([signal.SIGTERM, signal.SIGUSR1]))
            self.ended(case, started, [STOPPED_EARLY], since)
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

    def two_starts(self, case):
        """Two runs are started in one folder at the same time: one of them trains, the other is refused."""
        with self.begin(case) as first, self.begin(case) as second:
            results = [each.finish() for each in (first, second)]
        refused = [each for each in results if each.code == IO]
        finished = [each for each in results if each.code == FINISHED]
        said = "\n".join(map(str, results))
        self.assertEqual(len(finished) + len(refused), 2, said)
        self.assertTrue(finished, said)
        for each in refused:
            self.assertIn("another run is using the run folder", each.err)
        case.lost = 0
        self.compare(case)

    def memory_pressure(self, case):
        """A rank can have no more memory from some moment on: the run continues without, or ends with a
        message."""
        with self.begin(case, ENDLESS) as started:
            self.wait_for_moment(case, started)
            rank, since = case.chance.choice(self.ranks_of(started)), time.monotonic()
            status = Path(f"/proc/{rank}/status").read_text()
            used = 1024 * int(re.search(r"VmSize:\s+(\d+)", status).group(1))
            resource.prlimit(rank, resource.RLIMIT_AS, (used, used))
            enough = self.reached(case.name) + 4 * EVERY
            while started.running() and self.reached(case.name) < enough and time.monotonic() < since + PATIENCE:
                time.sleep(0.01)
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.kill(rank, signal.SIGUSR1)
            self.ended(case, started, [1, IO, STOPPED_EARLY, 70], since)
        if case.code == STOPPED_EARLY:
            case.detected = None
        self.continues(case)

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

    def supervised(self, case):
        """A rank dies twice under --supervise, which starts the run again, the second time without its host. A kill
        switch ends it."""
        hosts = self.folder / f"{case.name}-hosts"
        own = socket.gethostname()
        hosts.write_text(f"{own}\n" * case.ranks + "localhost\n" * case.ranks)  # one slot each
        switch = self.folder / f"{case.name}-switch"
        command = [BIN / "trireme-pretrain", *self.deck_words(case.name, *case.words(), ENDLESS, f"train.kill_switch={switch}"),
                   f"--supervise={MPIEXEC} --oversubscribe --bind-to none --hostfile {hosts} -n {case.ranks}"]
        with Started(command) as started:
            for number in 1, 2, 3:
                self.wait_until(lambda: self.saved_since_start(case.name, number), started)
                if number == 3:
                    switch.touch()
                    break
                launcher = started.children()[0]
                ranks = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
                os.kill(int(case.chance.choice(ranks)), signal.SIGKILL)
            result = started.finish()
        self.assertEqual(result.code, FINISHED, result)
        self.assertEqual(len(re.findall("starting it again in", result.err)), 2, result)
        self.assertIn(f"{own} lost a rank in 2 starts and is left out from now on", result.err)
        self.assertRegex(result.err, r"supervise: goodput \d+\.\d % of .* in 3 starts: ")
        goodput = json.loads(run("trireme-report", "goodput", self.folder / case.name, "--json").out)
        self.continues(case)
        case.lost = goodput["lost_iterations"]

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
