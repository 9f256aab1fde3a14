"""A host is lost in the middle of a run: what is left of the job ends soon and says which ranks are
missing; the job is queued again, and comes to the losses of a run that nothing disturbed."""

import re
import unittest

from cluster import (BOTH_NODES, PACED, TIMEOUT, ClusterTest, call, freeze, plug_in_cable, pull_cable,
                     running_programs, switch_off_and_on, thaw)
from runs import FINISHED, Started


class LostHost(ClusterTest):
    def lose(self, node, lose, give_back):
        """`lose` takes a node from a job that has saved, `give_back` returns it for the second try."""
        with self.submit("many-nodes.sbatch", *BOTH_NODES, **PACED) as job:
            job.wait_until(lambda: self.checkpoints("run"))
            lose(node)
            job.wait_until(lambda: job.restarts >= 1)
            text = job.text()
            give_back(node)
            self.assertEqual(job.finish(), FINISHED, job.text())
        self.assertGreater(self.events("run", "start")[-1]["iteration"], 0)
        self.check_losses("run")
        return text

    def check_message(self, text):
        found = re.search(r"rank [01] on node0: .* took longer than (\d+) s \(comm\.timeout\), in .* of iteration \d+; "
                          r"no answer from rank [23] on node1", text)
        self.assertTrue(found, text)
        # While the ranks save they wait for each other longer, by as much as a save may take.
        self.assertTrue(TIMEOUT <= int(found.group(1)) <= 4 * TIMEOUT, text)


class Lost(LostHost):
    def test_cable(self):
        self.check_message(self.lose("node1", pull_cable, plug_in_cable))


class Slow(LostHost):
    def test_frozen(self):
        """The old ranks continue while the new ones run."""
        self.check_message(self.lose("node1", freeze, thaw))

    def test_first_host(self):
        """The job's own shell is there: only Slurm can queue it again. What is left of the job there
        must be gone first, or the old srun ends the step of the same number."""
        def start_again(node):
            switch_off_and_on(node)
            plug_in_cable(node)

        self.lose("node0", pull_cable, start_again)

    def test_without_a_scheduler(self):
        """mpirun notices before the ranks do, and the same command resumes the run."""
        words = self.over_ssh("run", timeout=90)
        with Started(words) as run:
            self.wait_until(lambda: self.checkpoints("run"), run)
            pull_cable("node1")
            result = run.finish()
        self.assertNotEqual(result.code, FINISHED, result)
        self.assertIn("ORTE has lost communication with a remote daemon", result.err)
        self.assertIn("on node node1", result.err)
        plug_in_cable("node1")
        self.wait("the end of the ranks", lambda: not running_programs())
        call(*words)
        self.check_losses("run", tolerance=1e-3)


if __name__ == "__main__":
    unittest.main(verbosity=2)
