"""Ranks on two hosts, started in every way that jobs/ knows: each run has the losses that the same
layout has on one host."""

import unittest

from cluster import BIN, BOTH_NODES, NODES, PER_NODE, ClusterTest, call
from runs import FINISHED, Started

RANKS = len(NODES) * PER_NODE


class Launch(ClusterTest):
    def check(self, job, started_by="srun --mpi=pmix", name="run"):
        with job:
            self.assertEqual(job.finish(), FINISHED, job.text())
            self.assertIn(f"continue   {started_by} -n {RANKS} ", job.text())
        self.assertEqual(self.hosts(name), NODES)
        self.check_losses(name)

    def test_srun(self):
        self.check(self.submit("many-nodes.sbatch", *BOTH_NODES))

    def test_srun_without_pmix(self):
        words = ["srun", "--mpi=none", "--nodes=2", BIN / "trireme-pretrain",
                 *self.deck_words("run")]
        with Started([*map(str, words)]) as run:
            result = run.finish()
        self.assertEqual(result.code, 1, result)
        self.assertIn("Start it with 'srun --mpi=pmix'", result.err)
        self.assertFalse((self.folder / "run").exists())

    def test_mpirun_in_a_job(self):
        self.check(self.submit("mpirun.sbatch", *BOTH_NODES), started_by="mpirun")

    def test_heterogeneous_job(self):
        """One rank on the first node, three on the other."""
        first, second = ([f"--nodelist={node}", "--nodes=1", f"--ntasks-per-node={ranks}",
                          f"--gpus-per-node={ranks}", "--cpus-per-task=1"]
                         for node, ranks in zip(NODES, [1, RANKS - 1]))
        words = ["heterogeneous.sbatch", *first, ":", *second]
        with self.submit(*words, name="first") as job:
            again = job.srun_waits_in_vain()
        if again:
            print("\n  srun waited for tasks that had exited: once more", flush=True)
            self.assertIn("finished (exit code 0)", job.text())
        self.check(self.submit(*words) if again else job, name="run" if again else "first")

    def test_array(self):
        lines = self.folder / "lines.txt"
        lines.write_text("train.iterations=3\ntrain.iterations=4\nmodel.head=3\n")
        one_node = ["--nodes=1", *BOTH_NODES[1:], "--array=1-3"]
        with self.submit("array.sbatch", *one_node, name="runs",
                         LIST=str(lines), words=["parallel.data=auto"]) as job:
            self.wait("the array", lambda: call("squeue", "--noheader", "--job", job.id) == "")
            self.assertEqual(len(self.losses("runs/1")), 3)
            self.assertEqual(len(self.losses("runs/2")), 4)
            self.assertIn("unknown key 'model.head'", job.text())

    def test_hosts_without_a_scheduler(self):
        call(*self.over_ssh("run"))
        self.assertEqual(self.hosts("run"), NODES)
        # What ssh does not pass on may choose other kernels for the GEMMs.
        self.check_losses("run", tolerance=1e-3)


if __name__ == "__main__":
    unittest.main(verbosity=2)
