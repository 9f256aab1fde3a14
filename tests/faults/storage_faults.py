"""Faults of storage: shared checkpoints, local ones, logs."""

import os
import re
import signal
import time

from driver import ENDLESS, EVERY, KILLED, SLOW_SAVE, Driver
from runs import DATA, FINISHED, IO, STOPPED_EARLY, run


class StorageFaults(Driver):
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

    def strays(self, case):
        """Files that are no checkpoints lie among them, under names of some."""
        newest = self.partly_done(case)
        folder = newest.parent
        (folder / "notes.txt").write_text("not a checkpoint\n")
        (folder / "step-00000007.h5.old").write_text("")
        (folder / "step-1.h5").write_text("")
        (folder / "step-00000005.h5").symlink_to("step-00000005.h5")
        (folder / "step-00000003.h5").mkdir()
        (folder / "step-00000003.h5" / "file").write_text("")
        (folder / f"step-{case.chance.choice([50, 90, 99]):08}.h5").write_bytes(b"\0" * 4096)
        self.continues(case)

    def moved(self, case):
        """The run folder is renamed, and the run resumes there."""
        self.partly_done(case)
        before = self.reached(case.name)
        old = self.folder / case.name
        case.name += "-moved"
        old.rename(self.folder / case.name)
        self.continues(case, before=before)

    def log_full(self, case):
        """The disk of metrics.jsonl, of the console's log or of TensorBoard's file is full for a while: a
        warning, and no line is missing at the end."""
        file = case.chance.choice(["metrics.jsonl", "console.log", "events.out.tfevents"])
        with self.begin(case, "log.tensorboard.enable=true", "log.tensorboard.flush_every=1", FAULT="enospc",
                        FAULT_FILES=file,
                        FAULT_AFTER=case.chance.randrange(20, 60), FAULT_COUNT=case.chance.randrange(1, 30)) as started:
            result = self.ended(case, started, [FINISHED], time.monotonic())
        self.assertRegex(result.err, f"warning: cannot write '.*{file}.*': No space left on device; training continues")
        case.detected, case.lost = None, 0
        self.compare(case)


class LocalFaults(Driver):
    """With local checkpoints besides the shared ones."""

    def local_words(self, case):
        return [f"checkpoint.local.path={self.folder / case.name}-local", "checkpoint.local.every=2"]

    def local_shards(self, case):
        return sorted((self.folder / f"{case.name}-local").glob("*/*.shard"))

    def local_kill(self, case):
        """A rank dies before the first shared checkpoint: the run resumes from a local one."""
        words = [*self.local_words(case), "checkpoint.every=100000"]
        with self.begin(case, *words, ENDLESS) as started:
            self.wait_until(lambda: len(self.local_shards(case)) >= 4, started)
            since = time.monotonic()
            os.kill(case.chance.choice(self.ranks_of(started)), signal.SIGKILL)
            self.ended(case, started, [KILLED, STOPPED_EARLY], since)
        result = self.continues(case, *words)
        self.assertIn("from the local checkpoint in ", result.out)
        return result

    def local_kill_in_save(self, case):
        """A rank dies while a shared checkpoint is written, after local ones: the newer of what is complete."""
        case.background = True
        words = self.local_words(case)
        folder = self.folder / case.name / "checkpoints"
        with self.begin(case, *words, ENDLESS, **SLOW_SAVE) as started:
            self.wait_until(lambda: self.checkpoints(case.name) and list(folder.glob("*.part")), started)
            since = time.monotonic()
            os.kill(case.chance.choice(self.ranks_of(started)), signal.SIGKILL)
            self.ended(case, started, [KILLED, STOPPED_EARLY], since)
        self.continues(case, *words)

    def local_partly_done(self, case):
        # Without a checkpoint in flight each local one is newer than the shared ones before it.
        case.background = False
        for shared in range(2 * EVERY, 6 * EVERY, EVERY):
            with self.begin(case, *self.local_words(case), f"train.exit_interval={shared + 7}") as started:
                self.assertEqual(started.finish().code, FINISHED, case.name)
            # A busy machine may leave out all local ones since the last shared one: then a little further.
            newest = self.local_shards(case)[-1].name
            if int(re.match(r"step-(\d+)", newest).group(1)) > shared:
                break
        self.latest(case.name).unlink()

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

    def local_write_error(self, case):
        """A local disk fails from then on: a warning, and the run goes on with its shared checkpoints."""
        fault = case.chance.choice(["eio", "enospc"])
        with self.begin(case, *self.local_words(case), FAULT=fault, FAULT_FILES=".shard.part",
                        FAULT_RANK=case.chance.randrange(2), FAULT_AFTER=case.chance.randrange(8, 40)) as started:
            result = self.ended(case, started, [FINISHED], time.monotonic())
        warnings = [event["message"] for event in self.events(case.name, "warning")]
        self.assertEqual(sum(text.startswith("no local checkpoint: cannot ") for text in warnings), 1, result)
        # Two of each rank at most: those that others could not complete are gone.
        self.assertLessEqual(len(self.local_shards(case)), 2 * case.ranks, self.local_shards(case))
        case.detected, case.lost = None, 0
        self.compare(case)
