"""What the run-level tests share: starting programs, a dataset, a deck, reading what a run wrote.

The environment names the folder of the programs (TRIREME_BIN), a folder for what the tests write
(TRIREME_SCRATCH), the launcher (TRIREME_MPIEXEC) and, where it is not to be the host, what the
programs compute on (TRIREME_DEVICE).
"""

import contextlib
import functools
import json
import math
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
BIN = Path(os.environ["TRIREME_BIN"])
SCRATCH = Path(os.environ["TRIREME_SCRATCH"])
MPIEXEC = os.environ["TRIREME_MPIEXEC"]
DEVICE = os.environ.get("TRIREME_DEVICE", "host")

# Launchers that are killed leave their session folders in TMPDIR. It is not in SCRATCH: Open MPI warns of network file
# systems. On the emulated cluster each host has its own.
if "CLUSTER" not in os.environ:
    TEMPORARY = tempfile.TemporaryDirectory(prefix="trireme_test_", ignore_cleanup_errors=True)
    os.environ["TMPDIR"] = TEMPORARY.name

# Seconds that no step of these tests comes near to: what takes longer hangs.
PATIENCE = 240
# Seconds within which mpirun ends after its ranks; and how often a test runs whose mpirun does not.
LAUNCHER_PATIENCE, ATTEMPTS = 20, 3

# A Llama of grouped heads, which learns in fewer steps: its key and value heads are fewer than four tensor
# ranks, as many as two, and more than one.
GROUPED = ["model.family=llama", "model.heads=8", "model.kv_heads=2", "model.ffn=64",
           "model.dropout={attention: 0.1, hidden: 0.1}", "schedule.peak=1e-2", "schedule.warmup=2",
           "train.iterations=10"]

FINISHED, FAILED, USAGE, DATA, IO, STOPPED_EARLY, DIVERGED, DECK = 0, 1, 2, 65, 74, 75, 76, 78


class Result:
    """How a program ended: its exit code, standard output and standard error."""

    def __init__(self, command, code, out, err):
        self.command, self.code, self.out, self.err = command, code, out, err

    def __str__(self):
        return f"{' '.join(map(str, self.command))}\nended with {self.code}\n{self.out}\n{self.err}"


class LauncherFailed(Exception):
    """Open MPI 4.1's mpirun may hang after its ranks have ended, and its ranks may crash in MPI_Init when one maps another's
    shared memory. RunTest runs such a test again."""

    count = 0

    def __init__(self, how, result):
        super().__init__(f"{how}\n{result}")
        LauncherFailed.count += 1


def command_line(program, *arguments, ranks=1):
    """The words that start `program` on `ranks` ranks; without a launcher on one."""
    launcher = [MPIEXEC, "--oversubscribe", "--bind-to", "none", "-n", str(ranks)]
    return [*(launcher if ranks > 1 else []), str(BIN / program), *map(str, arguments)]


def is_rank(process):
    """Whether mpirun has started it as a rank; one that has ended has no environment."""
    with contextlib.suppress(OSError):
        return b"\0OMPI_COMM_WORLD_RANK=" in b"\0" + Path(f"/proc/{process}/environ").read_bytes()
    return False


def state(process):
    """R, S, T, ...; Z once the process has ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"


class Started:
    """A program that runs in its own process group; the group dies with the `with` block. What it prints is read as it
    comes: a full pipe would hold it up."""

    def __init__(self, command):
        self.command = command
        self.ranks = set()  # the PIDs of those that a launcher has started, also of those that have ended
        self.idle_since = None
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
        self.printed = {stream: [] for stream in (self.process.stdout, self.process.stderr)}
        self.readers = [threading.Thread(target=self.read, args=(stream,), daemon=True) for stream in self.printed]
        for reader in self.readers:
            reader.start()

    def read(self, stream):
        for line in stream:
            self.printed[stream].append(line)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for reader, stream in zip(self.readers, self.printed):
            reader.join()
            stream.close()

    def finish(self, patience=PATIENCE):
        """Waits for the end. Raises LauncherFailed where an mpirun does not end after its ranks, or its ranks
        never began."""
        deadline = time.monotonic() + patience
        while self.running():
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(self.command, patience)
            self.check_launcher()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=0.5)
        for reader in self.readers:  # children may print after it has ended
            reader.join(max(deadline - time.monotonic(), 0))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(self.command, patience)
        self.check_beginning()
        return self.so_far()

    def so_far(self):
        """What it has printed, and its exit code if it has ended."""
        out, err = (b"".join(lines).decode() for lines in self.printed.values())
        return Result(self.command, self.process.poll(), out, err)

    def error_lines(self):
        """The lines of its standard error, as they come, until its end."""
        lines, reader, count = self.printed[self.process.stderr], self.readers[1], 0
        while True:
            alive = reader.is_alive()
            while count < len(lines):
                yield lines[count].decode()
                count += 1
            if not alive:
                return
            time.sleep(0.01)

    def running(self):
        return self.process.poll() is None

    def has_opened(self, name):
        """Whether the process has a file of that name open."""
        with contextlib.suppress(OSError):
            return any(os.readlink(link).endswith(f"/{name}") for link in Path(f"/proc/{self.process.pid}/fd").iterdir())
        return False

    def children(self):
        """The processes that this one has started itself: the ranks of a launcher."""
        found = []
        for task in Path(f"/proc/{self.process.pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):  # a thread that has ended
                found += map(int, task.read_text().split())
        return found

    def remember_ranks(self):
        self.ranks |= set(filter(is_rank, self.children()))

    def check_beginning(self):
        """Raises LauncherFailed where a rank crashed in MPI_Init, before the program said anything."""
        for reader in self.readers:
            reader.join(1)
        result = self.so_far()
        if not result.out and "failed during shared memory initialization" in result.err and "Segmentation fault" in result.err:
            raise LauncherFailed("Open MPI crashed in MPI_Init", result)

    def check_launcher(self):
        """Raises LauncherFailed where a launcher runs LAUNCHER_PATIENCE longer than its ranks: at least one has ended, each
        other one has ended or is stopped, and there are no other children."""
        self.remember_ranks()
        children = self.children()
        states = {state(rank) for rank in self.ranks}
        others = {state(child) for child in set(children) - self.ranks} - {"Z"}
        if others or "Z" not in states or states - set("ZTt"):
            self.idle_since = None
        elif self.idle_since is None:
            self.idle_since = time.monotonic()
        elif time.monotonic() > self.idle_since + LAUNCHER_PATIENCE:
            for child in children:  # a stopped one would stay
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            raise LauncherFailed("mpirun hangs after its ranks have ended", self.so_far())


def run(program, *arguments, ranks=1):
    with Started(command_line(program, *arguments, ranks=ranks)) as started:
        return started.finish()


@functools.lru_cache(maxsize=None)
def dataset():
    """The prefix of a dataset of bytes, made of the licence: a document for each line."""
    prefix = SCRATCH / "licence"
    text = SCRATCH / "licence.txt"
    SCRATCH.mkdir(parents=True, exist_ok=True)
    shutil.copy(HERE.parents[1] / "LICENSE", text)
    made = run("trireme-preprocess", "--input", text, "--output", prefix, "--tokenizer", "bytes",
               "--append-eod")
    if made.code != 0:
        raise RuntimeError(str(made))
    return Path(f"{prefix}_text_document")


def layout_words(tensor, pipeline, data):
    """The overrides that lay a run out."""
    return [f"parallel.tensor={tensor}", f"parallel.pipeline={pipeline}", f"parallel.data={data}"]


class RunTest(unittest.TestCase):
    """A test with its own empty folder, where `pretrain` makes run folders."""

    longMessage = True
    maxDiff = None
    MODEL = []  # overrides of every deck, before a test's own

    def setUp(self):
        self.folder = SCRATCH / type(self).__name__ / self._testMethodName
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)

    def run(self, result=None):
        """Runs again a test whose launcher failed. Prints what such an attempt has found, which does not count."""
        result = result or self.defaultTestResult()
        for attempt in range(ATTEMPTS):
            before, problems = LauncherFailed.count, [(each, len(each)) for each in (result.errors, result.failures)]
            super().run(result)
            if LauncherFailed.count == before or attempt == ATTEMPTS - 1:
                return result
            print(f"{self.id()}: Open MPI failed, running it again")
            for found, kept in problems:
                for _, text in found[kept:]:
                    print(text, flush=True)
                del found[kept:]

    def one_of_many(self, call):
        """Calls `call(attempt)`, one of many runs of a test: again, alone, where its launcher failed."""
        for attempt in range(ATTEMPTS):
            try:
                return call(attempt)
            except LauncherFailed as failed:
                if attempt == ATTEMPTS - 1:
                    raise
                LauncherFailed.count -= 1
                print(f"{self.id()}: Open MPI failed, running this part again\n{failed}", flush=True)

    def deck_words(self, name, *words):
        """The deck of the run `name`, then its overrides and options: of two for one key the later
        holds."""
        return [HERE / "tiny.yaml", f"data.train={dataset()}", f"run.output={self.folder / name}",
                f"run.device={DEVICE}", *self.MODEL, *words]

    def pretrain(self, name, *words, ranks=1, code=FINISHED):
        """Trains in the run folder `name` and checks the exit code."""
        result = run("trireme-pretrain", *self.deck_words(name, *words), ranks=ranks)
        self.assertEqual(result.code, code, result)
        return result

    _trained = set()  # the folders of pretrain_once() that hold a run of this process

    def pretrain_once(self, name, *words, ranks=1):
        """As pretrain() for all tests of a class: the first one trains, each gets a copy."""
        kept = self.folder.parent / "trained-once" / name
        if kept not in self._trained:
            self.pretrain(name, *words, ranks=ranks)
            shutil.rmtree(kept, ignore_errors=True)
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(self.folder / name, kept)
            self._trained.add(kept)
        shutil.copytree(kept, self.folder / name)

    def fails(self, code, text, *words, ranks=1):
        """Training ends with `code`, says `text` exactly once and leaves no run folder."""
        result = self.pretrain("run", *words, ranks=ranks, code=code)
        self.assertEqual(result.err.count(text), 1, result)
        self.assertEqual(result.out, "")
        self.assertFalse((self.folder / "run").exists())
        return result

    def evaluate(self, name, *words, ranks=1):
        """What trireme-evaluate says about the newest checkpoint of the run `name`."""
        result = run("trireme-evaluate", *self.deck_words(name, "--json", *words), ranks=ranks)
        self.assertEqual(result.code, FINISHED, result)
        return json.loads(result.out)

    def start(self, name, *words, ranks=1):
        """Starts a training run and returns immediately."""
        return Started(
            command_line("trireme-pretrain", *self.deck_words(name, *words), ranks=ranks))

    def wait_until(self, condition, started):
        """Waits until `condition()` holds; fails when the program has ended before."""
        deadline = time.monotonic() + PATIENCE
        while True:
            running = started.running()  # before the check: what it did last counts
            if condition():
                started.remember_ranks()  # the test may end them next
                return
            if not running:
                started.check_beginning()
            if not running or time.monotonic() > deadline:
                self.fail(f"waited in vain\n{started.so_far()}")
            time.sleep(0.01)

    def events(self, name, kind):
        """The objects of one kind in a run's metrics.jsonl; a line under way is left out."""
        path = self.folder / name / "metrics.jsonl"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [event for event in map(json.loads, lines) if event["kind"] == kind]

    def losses(self, name):
        """The loss of every iteration, first checking that there is one line for each."""
        train = self.events(name, "train")
        self.assertEqual([event["iteration"] for event in train], list(range(1, len(train) + 1)))
        return [event["loss"] for event in train]

    def stop_event(self, name):
        return self.events(name, "stop")[-1]

    def checkpoints(self, name):
        """The names of a run's checkpoint files, oldest first."""
        return sorted(path.name for path in (self.folder / name / "checkpoints").glob("*.h5"))

    def latest(self, name):
        """The checkpoint that a run's file `latest` names."""
        folder = self.folder / name / "checkpoints"
        return folder / (folder / "latest").read_text().strip()

    def inspect(self, path):
        """What trireme-inspect says about a checkpoint, all of whose checksums it verifies."""
        result = run("trireme-inspect", path, "--json")
        self.assertEqual(result.code, 0, result)
        return json.loads(result.out)

    def assert_learns(self, losses):
        self.assertLess(losses[-1], 0.9 * losses[0], "the model learns nothing")

    def check_layout(self, reference, tolerance, layout, *words):
        """Trains on `layout`, the numbers of tensor, pipeline and data ranks: the losses are those of
        `reference` within a relative tolerance."""
        label = " ".join(["tensor {} pipeline {} data {}".format(*layout), *words])
        with self.subTest(label):
            name = label.replace(" ", "-")
            self.pretrain(name, *layout_words(*layout), "checkpoint.at_end=false", *words,
                          ranks=math.prod(layout))
            started = self.events(name, "start")[0]["layout"]
            self.assertEqual(tuple(started[axis] for axis in ("tensor", "pipeline", "data")),
                             layout)
            self.assert_close(self.losses(name), reference, tolerance, label)

    def assert_close(self, losses, reference, tolerance, label):
        """Every loss within a relative tolerance of the reference's; prints the largest distance."""
        self.assertEqual(len(losses), len(reference), label)
        distances = [abs(a - b) / abs(b) for a, b in zip(losses, reference)]
        largest = max(distances)
        print(f"\n  {label}: largest relative difference {largest:.1e}", end=" ", flush=True)
        step = distances.index(largest)
        self.assertLessEqual(largest, tolerance,
                             f"{label}, iteration {step + 1}: {losses[step]} and {reference[step]}")
