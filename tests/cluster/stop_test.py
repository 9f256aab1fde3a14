"""Jobs that stop early: they save, are requeued and resume, unless a user cancelled them."""

import contextlib
import os
import signal
import unittest
from pathlib import Path

from cluster import BIN, BOTH_NODES, ClusterTest, call, running_programs
from runs import STOPPED_EARLY

ENDLESS = "train.iterations=20000"


def rank_processes():
    """The processes of the ranks, anywhere on the cluster."""
    program = str(BIN / "trireme-pretrain").encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.read_bytes().split(b"\0")[0] == program:
                found.append(int(path.parent.name))
    return sorted(found)


class StoppedJob(ClusterTest):
    def wait_for_training(self, job, name="run"):
        job.wait_until(lambda: len(self.events(name, "train")) > 2)

    def check_resumes(self, job, reason="a signal asked for it", name="run"):
        """The job is requeued, and resumes from its checkpoint."""
        job.wait_until(lambda: self.events(name, "stop"))
        stop = self.stop_event(name)
        self.assertEqual((stop["reason"], stop["exit_code"]), (reason, STOPPED_EARLY))
        checkpoint = self.folder / name / "checkpoints" / f"step-{stop['iteration']:08}.h5"
        self.assertTrue(checkpoint.exists())
        job.wait_until(lambda: len(self.losses(name)) > stop["iteration"])
        self.assertIn("goes back into the queue", job.text())
        self.assertIn(f"restart    from {checkpoint}, iteration {stop['iteration']}", job.text())


class Slow(StoppedJob):
    def test_signal_before_the_time_limit(self):
        """Slurm looks at time limits every half minute, and signals before the time rather than after."""
        with self.submit("many-nodes.sbatch", *BOTH_NODES, "--time=2", "--signal=USR1@85",
                         words=[ENDLESS]) as job:
            self.check_resumes(job)


class Stop(StoppedJob):
    def test_signal(self):
        with self.submit("many-nodes.sbatch", *BOTH_NODES, words=[ENDLESS]) as job:
            self.wait_for_training(job)
            call("scancel", "--signal=USR1", job.id)  # as --signal=USR1@... does
            self.check_resumes(job)

    def test_signal_under_mpirun(self):
        with self.submit("mpirun.sbatch", *BOTH_NODES, words=[ENDLESS]) as job:
            self.wait_for_training(job)
            call("scancel", "--signal=USR1", "--batch", job.id)  # as --signal=B:USR1@... does
            self.check_resumes(job)

    def test_time_limit_of_the_run(self):
        with self.submit("many-nodes.sbatch", *BOTH_NODES,
                         words=[ENDLESS, "--time-limit", "00:00:05"]) as job:
            self.check_resumes(job, "the time limit is near")

    def check_killed(self, script):
        """One rank is killed once the run has saved: srun and mpirun end with 137, and the job is queued again."""
        with self.submit(script, *BOTH_NODES, words=[ENDLESS, "checkpoint.every=20"]) as job:
            job.wait_until(lambda: (self.folder / "run/checkpoints/latest").exists())
            os.kill(rank_processes()[-1], signal.SIGKILL)
            job.wait_until(lambda: "restart    from " in job.text())
            self.assertIn("a signal killed a rank (exit code 137)", job.text())
            self.assertIn("goes back into the queue", job.text())

    def test_killed_rank(self):
        self.check_killed("many-nodes.sbatch")

    def test_killed_rank_under_mpirun(self):
        self.check_killed("mpirun.sbatch")

    def check_cancelled(self, script):
        with self.submit(script, *BOTH_NODES, words=[ENDLESS]) as job:
            self.wait_for_training(job)
            call("scancel", job.id)
            job.finish()
            self.assertEqual((job.state, job.restarts), ("CANCELLED", 0), job.text())
            self.wait("the end of the ranks", lambda: not running_programs())
            return job

    def test_scancel(self):
        """The ranks are asked first, and save."""
        self.check_cancelled("many-nodes.sbatch")
        iteration = self.stop_event("run")["iteration"]
        self.assertEqual(self.inspect(self.latest("run"))["attributes"]["iteration"], iteration)

    def test_scancel_under_mpirun(self):
        self.check_cancelled("mpirun.sbatch")


if __name__ == "__main__":
    unittest.main(verbosity=2)
