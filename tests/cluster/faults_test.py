"""The timetable's faults of tests/faults against jobs of srun on two hosts; and a host that is lost with its disk."""

import os
import random
import re
import signal
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "faults"))

from cluster import (BIN, BOTH_NODES, CLUSTER, NODES, PACED, PER_NODE, ClusterTest, deck, on_node,  # noqa: E402
                     running_programs, switch_off_and_on)
from driver import CORRUPTED, MANY_RANKS, Case  # noqa: E402
from process_faults import ProcessFaults  # noqa: E402
from runs import FINISHED  # noqa: E402
from storage_faults import LocalFaults, StorageFaults  # noqa: E402

# All four ranks on one node; the other is the spare one.
ONE_NODE = ["--nodes=1", "--ntasks-per-node=4", "--gpus-per-node=4", "--cpus-per-task=1"]
KINDS = ["kill", "kill_in_save", "stop", "signal_once", "signal_in_save", "local_kill"]


class SlurmFaults(ProcessFaults, StorageFaults, LocalFaults):
    """Two ranks on each node."""

    def command(self, case, settings, launcher):
        return ["env", "SLURM_PMIX_FENCE=ring", "srun", "--mpi=pmix", "--kill-on-bad-exit=0", "--wait=10",
                f"--nodes={len(NODES)}", f"--ntasks-per-node={PER_NODE}", "--cpus-per-task=1", "env", *settings]

    def ranks_of(self, started):
        """Of all programs on the cluster: one run is there at a time. srun's own words have them, too."""
        program = f"{BIN / 'trireme-pretrain'}\0".encode()
        return [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cmdline") if self.starts_with(path, program)]

    @staticmethod
    def starts_with(path, program):
        try:
            return path.read_bytes().startswith(program)
        except OSError:  # it has ended
            return False


class Faults(ClusterTest, SlurmFaults):
    def test_timetable(self):
        for number, kind in enumerate(KINDS):
            with self.subTest(kind):
                self.one_of_many(lambda attempt, number=number, kind=kind: self.meet(kind, number, attempt))

    def meet(self, kind, number, attempt):
        """One fault, in a run folder of its own."""
        case = Case(kind, number + attempt * len(KINDS), random.Random(number))
        case.layout, case.background, case.compressed = MANY_RANKS, number % 2 == 1, False
        try:
            getattr(self, kind)(case)
            print(f"\n  {kind}: exit code {case.code}, lost iterations {case.lost}", end=" ", flush=True)
        finally:
            self.wait("the end of the ranks", lambda: not running_programs())
            self.wait("the nodes", lambda: self.idle_nodes() == NODES)

    def test_a_host_is_lost_with_its_disk(self):
        """Each node has a disk of its own, and copies of the other's shards (checkpoint.local.partner)."""
        disk = CLUSTER / "tmp" / "local"
        words = [f"checkpoint.local.path={disk}", "checkpoint.local.every=3", "checkpoint.local.partner=true",
                 "checkpoint.every=1000"]
        with self.submit("many-nodes.sbatch", *BOTH_NODES, words=words, **PACED) as job:
            job.wait_until(lambda: self.events("run", "checkpoint") and all(self.copies(node, disk) for node in NODES))
            switch_off_and_on("node1")
            job.wait_until(lambda: job.restarts >= 1)
            self.assertEqual(self.checkpoints("run"), [])
            self.assertEqual(job.finish(), FINISHED, job.text())
        found = re.search(r"restart +from the local checkpoint in .*, iteration (\d+)", job.text())
        self.assertTrue(found, job.text())
        self.check_losses("run")

    def test_a_host_that_fails_twice_is_left_out(self):
        with self.submit("many-nodes.sbatch", *ONE_NODE, words=["checkpoint.every=5"], **PACED) as job:
            for start, number in enumerate([signal.SIGKILL, signal.SIGSTOP], 1):
                job.wait_until(lambda: self.saved_since_start("run", start))
                self.assertEqual(job.facts()["ExcNodeList"], "(null)")
                os.kill(self.ranks_of(None)[-1], number)
                job.wait_until(lambda: job.restarts >= start)
            self.assertEqual(job.finish(), FINISHED, job.text())
            self.assertEqual(job.facts()["ExcNodeList"], "node0", job.text())
            self.assertIn(f"job {job.id} goes back into the queue without node0, which lost ranks in two starts", job.text())
        starts = [(event["hosts"], event["iteration"] > 0) for event in self.events("run", "start")]
        self.assertEqual(starts, [(["node0"], False), (["node0"], True), (["node1"], True)])
        self.check_losses("run")

    def test_a_host_that_computes_wrong_results_is_left_out(self):
        """The spare node does so, too: then none is left, and the job stops."""
        path = self.folder / "wrong.yaml"
        path.write_text(deck().read_text().replace(
            "train: {", "train: {verify: {step_every: 8, inject: gradients rank=1 iteration=8 times=9}, "))
        with self.submit("many-nodes.sbatch", *ONE_NODE, words=["checkpoint.every=5"], DECK=str(path)) as job:
            self.assertEqual(job.finish(), CORRUPTED, job.text())
            self.assertEqual((job.restarts, job.facts()["ExcNodeList"]), (1, "node0"), job.text())
            for node in NODES:
                self.assertRegex(job.text(), rf"silent data corruption: .* on rank 1 \({node}.*so does a third run")
            self.assertIn("goes back into the queue without node0\n", job.text())
            self.assertIn("silent data corruption: there are no spare nodes for node0,node1; submit the job again with "
                          "--exclude=node0,node1\n", job.text())
        starts = [(event["hosts"], event["iteration"]) for event in self.events("run", "start")]
        self.assertEqual(starts, [(["node0"], 0), (["node1"], 5)])
        self.assertEqual([event["exit_code"] for event in self.events("run", "stop")][-1], CORRUPTED)

    @staticmethod
    def copies(node, disk):
        return on_node(node, "sh", "-c", f"ls {disk}/*/*.copy 2>/dev/null || true").split()


if __name__ == "__main__":
    unittest.main(verbosity=2)
