"""What all faults share: a case with its random choices, runs with the fault library, an unharmed run
to compare with."""

import json
import math
import os
import re
import signal
import time

from runs import BIN, FINISHED, MPIEXEC, RunTest, Started, layout_words

CORRUPTED = 77
# Of a launcher one of whose ranks was killed.
KILLED = 128 + signal.SIGKILL

LIBRARY = os.environ["TRIREME_IO_FAULTS"]
ITERATIONS = 96  # of a run that a fault does not end; all runs end at a multiple of it
EVERY = 8
# Of a run that a fault ends, however late it comes.
ENDLESS = "train.exit_interval=100000"
# The second checkpoint takes seconds to write.
SLOW_SAVE = {"FAULT": "slow", "FAULT_FILES": f"step-{2 * EVERY:08}.h5.part"}
# Seconds; nothing waits as long unless a rank is stopped.
TIMEOUT = 10
# Quick iterations: faults, not the model, take the time.
WORDS = ["train.iterations=100000", f"train.exit_interval={ITERATIONS}", "model.layers=2", "batch.micro=4"]
LAYOUTS = [(2, 1, 1), (1, 2, 1), (1, 1, 2)]
MANY_RANKS = (2, 2, 1)  # among random layouts
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
        self.compressed = chance.random() < 0.25
        self.detected = self.lost = None
        self.code = FINISHED

    @property
    def ranks(self):
        return math.prod(self.layout)

    def layout_words(self):
        return [*layout_words(*self.layout), *([f"parallel.zero={self.zero}"] if self.layout[2] > 1 else [])]

    def layout_name(self):
        return "x".join(map(str, self.layout)) + (f" z{self.zero}" if self.layout[2] > 1 else "")

    def save_name(self):
        return ("async" if self.background else "sync") + (" gz" if self.compressed else "")

    def words(self):
        return [*self.layout_words(), *WORDS, f"checkpoint.every={EVERY}", "checkpoint.keep=3",
                f"comm.timeout={TIMEOUT} seconds",
                f"checkpoint.async={str(self.background).lower()}",
                *(["checkpoint.compression=1"] if self.compressed else [])]


class Driver(RunTest):
    def command(self, case, settings, launcher):
        """The words before those of the program."""
        return [MPIEXEC, "--oversubscribe", "--bind-to", "none", *launcher, "-n", str(case.ranks), "env", *settings]

    def ranks_of(self, started):
        """The processes of the ranks, in no order."""
        return started.children()

    def begin(self, case, *words, launcher=(), **environment):
        """Starts the run of `case`, with the settings of the fault library."""
        settings = [f"LD_PRELOAD={LIBRARY}", *(f"TRIREME_{k}={v}" for k, v in environment.items())]
        return Started([*self.command(case, settings if environment else [], launcher), BIN / "trireme-pretrain",
                        *self.deck_words(case.name, *case.words(), *words)])

    def reached(self, name):
        train = self.events(name, "train")
        return train[-1]["iteration"] if train else 0

    def saved_since_start(self, name, number):
        """Whether the run's start of this number has written a checkpoint."""
        path = self.folder / name / "metrics.jsonl"
        kinds = [json.loads(line)["kind"] for line in path.read_text().split("\n")[:-1]] if path.exists() else []
        return kinds.count("start") == number and "checkpoint" in kinds[len(kinds) - kinds[::-1].index("start"):]

    def wait_for_moment(self, case, started):
        """Waits for a checkpoint and then for a random moment."""
        self.wait_until(lambda: self.checkpoints(case.name), started)
        self.let_pass(case, 0.1)

    def let_pass(self, case, seconds):
        """Waits for a random time of at most `seconds`, and at most for a few iterations: a run that comes far is
        compared with one that takes as long."""
        end, last = time.monotonic() + case.chance.uniform(0, seconds), self.reached(case.name) + EVERY
        while time.monotonic() < end and self.reached(case.name) < last:
            time.sleep(0.01)

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

    def unharmed(self, case, iterations=ITERATIONS):
        """The name of an unharmed run on the layout of `case`."""
        whole = f"whole-{case.layout_name().replace(' ', '-')}-{iterations}"
        if not (self.folder / whole).exists():
            self.pretrain(whole, *case.layout_words(), *WORDS, f"train.exit_interval={iterations}", ranks=case.ranks)
        return whole

    def compare(self, case):
        self.assertEqual(self.reached(case.name) % ITERATIONS, 0, case.name)
        whole = self.unharmed(case, self.reached(case.name))
        self.assertEqual(self.losses(case.name), self.losses(whole), case.name)
        self.assertEqual(self.inspect(self.latest(case.name))["tensors"],
                         self.inspect(self.latest(whole))["tensors"], case.name)
        left = list((self.folder / case.name / "checkpoints").glob("*.part*"))
        self.assertEqual(left, [], case.name)

    def signalled(self, case, number, codes, everyone=False):
        with self.begin(case, ENDLESS) as started:
            self.wait_for_moment(case, started)
            ranks = self.ranks_of(started)
            since = time.monotonic()
            for rank in ranks if everyone else [case.chance.choice(ranks)]:
                os.kill(rank, number)
            result = self.ended(case, started, codes, since)
        self.continues(case)
        return result

    def partly_done(self, case):
        """A run that was stopped after two checkpoints or more; its newest one."""
        with self.begin(case, f"train.exit_interval={3 * EVERY}") as started:
            self.assertEqual(started.finish().code, FINISHED, case.name)
        return self.latest(case.name)
