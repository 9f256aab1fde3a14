"""A sweep as Slurm arrays: each run in a task of its own, none of them twice."""

import unittest

from cluster import BIN, ClusterTest, call, dataset, deck

RUNS = 4
ITERATIONS = 10


class Sweep(ClusterTest):
    def sweep(self, *words):
        path = self.folder / "sweep.yaml"
        path.write_text(deck().read_text()
                        + "sweep: {parallel.tensor: [1, 2], schedule.peak: [1e-3, 2e-3]}\n")
        return call(BIN / "trireme-sweep", *words[:1], path, f"run.output={self.folder / 'out'}",
                    f"data.train={dataset()}", "run.device=host", "parallel.data=1",
                    f"train.iterations={ITERATIONS}", *words[1:])

    def submit(self):
        return self.sweep("run", "--submit", "--sbatch", "--nodes=1 --time=10")

    def test_arrays(self):
        self.assertIn("--array=3-4", self.submit())
        self.wait("the arrays", lambda: call("squeue", "--noheader") == "")
        self.assertIn(f"{RUNS} runs: {RUNS} finished", self.sweep("status"))
        runs = [path.parent.name for path in (self.folder / "out").glob("*/metrics.jsonl")]
        self.assertEqual(len(runs), RUNS)
        for run in runs:
            self.assertEqual(len(self.losses(f"out/{run}")), ITERATIONS)
        self.assertEqual(self.submit(), f"{RUNS} runs: {RUNS} finished\n")


if __name__ == "__main__":
    unittest.main(verbosity=2)
