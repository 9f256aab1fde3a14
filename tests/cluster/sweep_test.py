"""A sweep as Slurm arrays: one task per run, each run once."""

import shutil
import unittest

from cluster import BIN, ClusterTest, call, dataset, deck
from runs import STOPPED_EARLY

RUNS = 4
ITERATIONS = 10

# Ranks that leave one second after the other, as those do that have GPUs to leave in order.
LEAVES_LATE = """#!/bin/bash
trap : USR1
"{}" "$@"
code=$?
sleep "$SLURM_PROCID"
exit $code
"""


class Sweep(ClusterTest):
    def sweep(self, *words, folder=BIN, iterations=ITERATIONS):
        path = self.folder / "sweep.yaml"
        path.write_text(deck().read_text()
                        + "sweep: {parallel.tensor: [1, 2], schedule.peak: [1e-3, 2e-3]}\n")
        return call(folder / "trireme-sweep", *words[:1], path,
                    f"run.output={self.folder / 'out'}", f"data.train={dataset()}",
                    "run.device=host", "parallel.data=1", f"train.iterations={iterations}",
                    *words[1:])

    def submit(self, **more):
        return self.sweep("run", "--submit", "--sbatch", "--nodes=1 --time=10", **more)

    def test_arrays(self):
        self.assertIn("--array=3-4", self.submit())
        self.wait("the arrays", lambda: call("squeue", "--noheader") == "")
        self.assertIn(f"{RUNS} runs: {RUNS} finished", self.sweep("status"))
        runs = [path.parent.name for path in (self.folder / "out").glob("*/metrics.jsonl")]
        self.assertEqual(len(runs), RUNS)
        for run in runs:
            self.assertEqual(len(self.losses(f"out/{run}")), ITERATIONS)
        self.assertEqual(self.submit(), f"{RUNS} runs: {RUNS} finished\n")

    def test_runs_that_are_stopped_early_resume(self):
        """Also those of several ranks, of which the first to leave must not end the others."""
        programs = self.folder / "bin"
        programs.mkdir()
        shutil.copy(BIN / "trireme-sweep", programs)  # starts trireme-pretrain in the same folder
        (self.folder / "lib").symlink_to(BIN.parent / "lib")  # where programs find their libraries
        trainer = programs / "trireme-pretrain"
        trainer.write_text(LEAVES_LATE.format(BIN / "trireme-pretrain"))
        trainer.chmod(0o755)
        self.submit(folder=programs, iterations=20000)
        run = "out/tensor=2,peak=1e-3"
        self.wait("training", lambda: len(self.events(run, "train")) > 2)
        tasks = call("squeue", "--noheader", "--array", "--states=RUNNING", "--format=%i").split()
        call("scancel", "--signal=USR1", "--batch", *tasks)  # as --signal=B:USR1@120 does
        code = self.folder / "out" / "sweep" / "tensor=2,peak=1e-3.exit"
        self.wait("the end of the ranks", code.exists)
        self.assertEqual(int(code.read_text()), STOPPED_EARLY)
        stop = self.stop_event(run)
        self.wait("the restart", lambda: len(self.losses(run)) > stop["iteration"] + 2)


if __name__ == "__main__":
    unittest.main(verbosity=2)
