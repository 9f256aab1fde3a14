"""Storage that fails or hangs under a run: it ends immediately with 74 and names the file, the rank and
the reason, whichever rank has the fault and whether there is a checkpoint already; and a rank that
hangs in a save is noticed as soon as one that hangs in a step.

The environment also names the library that makes storage fail (TRIREME_IO_FAULTS). On two GPUs:
TRIREME_DEVICE=cuda.
"""

import os
import shutil
import signal
import time
import unittest
from unittest import mock

from runs import BIN, DECK, DEVICE, FINISHED, IO, MPIEXEC, RunTest, Started

LIBRARY = os.environ["TRIREME_IO_FAULTS"]
# Seconds; all waits of these runs are shorter unless something hangs.
TIMEOUT = 10
# On GPUs saves are in the background unless the deck says otherwise.
EVERY = ["train.iterations=3", "checkpoint.every=1", "checkpoint.async=false", "parallel.tensor=2",
         "comm.timeout=10 minutes"]
# Both ranks have half of the weights and moments: 0.3 GB, and 1.2 GB on GPUs.
LARGE = ["model.layers=2", "model.heads=16", f"model.hidden={2048 if DEVICE == 'cuda' else 1024}",
         "parallel.data=2", "batch.global=2", "train.iterations=2", "checkpoint.every=1",
         "checkpoint.async=false"]


class Saves(RunTest):
    def start_with_fault(self, name, fault, *words, rank=None, after=0):
        """Starts a run of two ranks, of which `rank`, or both, have the fault after some calls."""
        settings = [f"LD_PRELOAD={LIBRARY}", f"TRIREME_FAULT={fault}",
                    f"TRIREME_FAULT_AFTER={after}"]
        if rank is not None:
            settings.append(f"TRIREME_FAULT_RANK={rank}")
        return Started([MPIEXEC, "--oversubscribe", "--bind-to", "none", "-n", "2", "env", *settings,
                        BIN / "trireme-pretrain", *self.deck_words(name, *words)])

    def fails_with(self, reason, fault, rank, after=0):
        """A run in which `rank` has a fault ends with 74 and says why, once; no rank waits for comm.timeout, which is
        longer than finish() waits."""
        with self.start_with_fault("run", fault, *EVERY, rank=rank, after=after) as started:
            result = started.finish()
        self.assertEqual(result.code, IO, result)
        lines = [line for line in result.err.splitlines() if line.startswith("trireme-pretrain: ")]
        self.assertEqual(len(lines), 1, result)
        self.assertRegex(lines[0], rf"trireme-pretrain: cannot .*step-0000000\d\.h5\.part'.*{reason}")
        self.assertEqual(list((self.folder / "run" / "checkpoints").glob("*.part*")), [])

    def test_errors_are_met_before_the_first_step(self):
        self.fails_with(r"Input/output error.* \(rank 1 on ", "eio", rank=1)
        self.assertEqual(self.events("run", "train"), [])
        self.fails_with(r"Too many open files \(rank 1 on ", "emfile", rank=1)
        self.assertEqual(self.events("run", "train"), [])
        self.fails_with("Input/output error", "eio", rank=0)  # in HDF5
        self.assertEqual(self.events("run", "train"), [])

    def test_local_disks_are_tried_before_the_first_step(self):
        words = ["train.iterations=1", "checkpoint.local.every=1"]
        file = self.folder / "file"
        file.write_text("")
        result = self.pretrain("run", *words, f"checkpoint.local.path={file}", code=IO)
        self.assertRegex(result.err, r"checkpoint\.local: cannot open '.*step-00000000\.rank-00000\.shard\.part': .*\(rank 0 on ")
        self.assertEqual(self.events("run", "train"), [])
        disk = self.folder / "disk"
        self.pretrain("run", *words, f"checkpoint.local.path={disk}")
        self.assertEqual([path.name for path in disk.glob("*/*")], ["step-00000001.rank-00000.shard"])

    def test_local_checkpoints_of_other_hyperparameters_are_used(self):
        disk = self.folder / "disk"
        words = ["checkpoint.local.every=1", f"checkpoint.local.path={disk}", "checkpoint.at_end=false"]
        self.pretrain("run", *words, "train.iterations=3")
        result = self.pretrain("run", *words, "train.iterations=5", "optimizer.clip=0.5")
        self.assertRegex(result.out, "restart +from the local checkpoint in .*, iteration [1-3]\n")  # the newest: one may have been under way
        self.assertEqual(result.out.count("changed: optimizer.clip: 1 in the checkpoint, 0.5 now"), 1)
        shards = sorted(disk.glob("*/*"))
        refused = self.pretrain("run", *words, "train.iterations=6", "model.layers=2", code=DECK)
        self.assertIn("model.layers", refused.err)
        self.assertEqual(sorted(disk.glob("*/*")), shards)

    def test_local_checkpoints_hold_the_same_parts_in_every_precision(self):
        """They are also the same for each stage of ZeRO but none, and with sequence parallelism."""
        words = ["checkpoint.local.every=1", f"checkpoint.local.path={self.folder / 'disk'}", "checkpoint.async=false",
                 "checkpoint.at_end=false", "parallel.tensor=2", "parallel.data=2"]
        other = ["precision.compute=bf16", "precision.gemm=fp8", "parallel.zero=3", "parallel.sequence=true"]
        self.pretrain("run", *words, "train.iterations=1", ranks=4)
        for iterations, more in [(2, other), (3, ["precision.gradients=same", "precision.compute=fp16"])]:
            result = self.pretrain("run", *words, *more, f"train.iterations={iterations}", ranks=4)
            self.assertRegex(result.out, f"restart +from the local checkpoint in .*, iteration {iterations - 1}\n")

    def test_a_bucket_cuts_the_parts_of_local_checkpoints(self):
        words = ["checkpoint.local.every=1", f"checkpoint.local.path={self.folder / 'disk'}", "checkpoint.async=false",
                 "checkpoint.at_end=false", "parallel.zero=0"]
        self.pretrain("run", *words, "train.iterations=1")
        result = self.pretrain("run", *words, "train.iterations=2", "parallel.bucket=1000")
        self.assertIn("the local checkpoints after iteration 0, up to 1, are deleted once this run has saved and trains on\n",
                      result.out)

    def test_local_checkpoints_of_another_layout_are_deleted_once_a_run_has_saved(self):
        """Not by a start that has another layout by mistake."""
        disk = self.folder / "disk"
        words = ["checkpoint.local.every=10", f"checkpoint.local.path={disk}", "checkpoint.at_end=false"]
        self.pretrain("run", *words, "train.iterations=30", "parallel.data=2", ranks=2)
        kept = sorted(path.name for path in disk.glob("*/*"))  # one may have been left out
        said = (r"restart +.*'.*\.shard' belongs to another layout or run\n"
                r"restart +the local checkpoints after iteration [03], up to [123]0, are deleted once this run has "
                r"saved and trains on\n")
        # The stop saves, too.
        result = self.pretrain("run", *words, "train.iterations=30", "train.exit_interval=3", "parallel.tensor=2",
                               ranks=2)
        self.assertRegex(result.out, said)
        self.assertEqual(self.checkpoints("run"), ["step-00000003.h5"])
        self.assertEqual(sorted(path.name for path in disk.glob("*/*")), kept)
        again = self.pretrain("run", *words, "train.iterations=31", "parallel.data=2", ranks=2)
        self.assertRegex(again.out, "restart +from the local checkpoint in .*, iteration [123]0\n")
        # A shared save, for which the run waits: a local one may be under way until the end.
        result = self.pretrain("run", *words, "train.iterations=9", "checkpoint.local.every=1", "checkpoint.every=5",
                               "checkpoint.async=false", "parallel.tensor=2", ranks=2)
        self.assertRegex(result.out, said)
        left = {path.name.split(".")[0] for path in disk.glob("*/*")}
        self.assertTrue(left)
        self.assertLessEqual(max(left), "step-00000009")

    def test_local_checkpoints_of_another_layout_after_a_save_are_deleted(self):
        """Another start would resume from them rather than from what has been saved since."""
        disk = self.folder / "disk"
        words = [f"checkpoint.local.path={disk}", "checkpoint.at_end=false", "checkpoint.async=false"]
        self.pretrain("run", *words, "checkpoint.local.every=3", "checkpoint.every=4", "train.iterations=6",
                      "parallel.data=2", ranks=2)
        self.pretrain("run", *words, "checkpoint.local.every=100", "checkpoint.every=5", "train.iterations=9",
                      "parallel.tensor=2", ranks=2)
        self.assertEqual(self.checkpoints("run"), ["step-00000004.h5", "step-00000005.h5"])
        self.assertEqual([path.name for path in disk.glob("*/*") if path.name > "step-00000005"], [])

    def test_local_checkpoints_that_a_start_leaves_out_are_deleted(self):
        words = ["checkpoint.local.every=3", f"checkpoint.local.path={self.folder / 'disk'}", "checkpoint.at_end=false"]
        self.pretrain("run", *words, "train.iterations=3")
        result = self.pretrain("run", *words, "train.iterations=1", "--restart", "never")
        self.assertIn("restart    the local checkpoints after iteration 0, up to 3, are deleted\n", result.out)
        self.assertEqual(list((self.folder / "disk").glob("*/*")), [])

    def test_local_checkpoints_outlive_the_run_folder(self):
        words = ["checkpoint.local.every=1", f"checkpoint.local.path={self.folder / 'disk'}", "train.iterations=2"]
        said = "restart    the run folder has no checkpoint; a fresh model starts with --restart never\n"
        self.assertNotIn(said, self.pretrain("run", *words).out)
        shutil.rmtree(self.folder / "run")
        result = self.pretrain("run", *words, "train.iterations=3")
        self.assertRegex(result.out, f"restart +from the local checkpoint in .*, iteration [12]\n{said}")
        shutil.rmtree(self.folder / "run")
        result = self.pretrain("run", *words, "--restart", "never")
        self.assertIn("restart    no checkpoint: a fresh model\n", result.out)
        self.assertEqual([event["iteration"] for event in self.events("run", "train")], [1, 2])

    def test_local_checkpoints_of_a_stage_without_layers(self):
        words = ["train.iterations=2", "model.layers=2", "parallel.pipeline=3", "parallel.partition=1-0-1",
                 "checkpoint.local.every=1", f"checkpoint.local.path={self.folder / 'disk'}"]
        self.pretrain("run", *words, ranks=3)
        self.inspect(self.latest("run"))

    def test_stripes_are_set_by_lustres_program(self):
        words = ["train.iterations=1", "checkpoint.stripes=4"]
        failed = self.pretrain("run", *words, code=IO)
        self.assertIn("checkpoint.stripes = 4: 'lfs setstripe -c 4 ", failed.err)
        lfs = self.folder / "lfs"
        lfs.write_text(f'#!/bin/sh\necho "$@" >{self.folder}/asked\n')
        lfs.chmod(0o755)
        with mock.patch.dict(os.environ, PATH=f"{self.folder}:{os.environ['PATH']}"):
            self.pretrain("run", *words)
        self.assertEqual((self.folder / "asked").read_text(),
                         f"setstripe -c 4 {self.folder}/run/checkpoints\n")

    def test_errors_of_a_save(self):
        # One write, and one file opened, before training.
        self.fails_with(r"Input/output error \(rank 1 on ", "eio", rank=1, after=5)
        self.assertEqual(self.checkpoints("run"), [])
        self.assertEqual(len(self.events("run", "train")), 1)

    def test_errors_after_a_checkpoint_are_no_reason_to_run_again(self):
        self.fails_with(r"Too many open files \(rank 1 on ", "emfile", rank=1, after=2)
        self.assertEqual(self.checkpoints("run"), ["step-00000001.h5"])
        self.inspect(self.latest("run"))

    def test_short_writes_are_continued(self):
        with self.start_with_fault("run", "short", *EVERY) as started:
            result = started.finish()
        self.assertEqual(result.code, FINISHED, result)
        self.pretrain("whole", *EVERY, ranks=2)
        self.assertEqual(self.inspect(self.latest("run"))["tensors"],
                         self.inspect(self.latest("whole"))["tensors"])

    def test_a_hang_in_a_save_is_noticed_in_time(self):
        words = [*LARGE, f"comm.timeout={TIMEOUT} seconds"]
        unfinished = self.folder / "run" / "checkpoints" / "step-00000001.h5.part"
        with self.start_with_fault("run", "slow", *words) as started:
            self.wait_until(unfinished.exists, started)
            time.sleep(0.5)
            ranks = started.children()
            self.assertEqual(len(ranks), 2)
            os.kill(ranks[1], signal.SIGSTOP)
            began = time.monotonic()
            result = started.finish()
        seconds = time.monotonic() - began
        print(f"\n  noticed after {seconds:.1f} s (comm.timeout {TIMEOUT} s)", end=" ", flush=True)
        self.assertNotEqual(result.code, FINISHED, result)
        self.assertRegex(result.err, "; no answer from rank 1 on ")
        # Asking the ranks and ending them takes some seconds, on a busy machine many.
        self.assertLess(seconds, 10 * TIMEOUT, result)


if __name__ == "__main__":
    unittest.main(verbosity=2)
