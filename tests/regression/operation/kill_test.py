"""A rank is killed at a random moment of a run that saves at every iteration: the job ends, what
`latest` names is whole, and the run resumes as if nothing had happened."""

import os
import random
import signal
import time
import unittest

from runs import RunTest

KILLS = 8
# More iterations than there are before the last kill, however fast the machine is.
WORDS = ["train.iterations=1000000", "parallel.tensor=2"]
SAVES = ["checkpoint.every=1", "checkpoint.keep=3"]


class Kill(RunTest):
    def kill_once(self, chance):
        """Lets a run save at least one checkpoint more, then kills one of its ranks."""
        before = self.checkpoints("killed")
        with self.start("killed", *WORDS, *SAVES, ranks=2) as run:
            self.wait_until(lambda: self.checkpoints("killed") != before, run)
            time.sleep(chance.uniform(0, 0.1))
            os.kill(chance.choice(run.children()), signal.SIGKILL)
            result = run.finish()
        self.assertNotEqual(result.code, 0, result)

    def test_sigkill(self):
        chance = random.Random(7)
        for number in range(KILLS):
            self.kill_once(chance)
            tensors = self.inspect(self.latest("killed"))["tensors"]
            self.assertTrue(tensors)
            reached = self.latest("killed").name
            print(f"\n  kill {number + 1}: {reached}", end=" ", flush=True)
        end = f"train.exit_interval={int(self.latest('killed').stem.removeprefix('step-')) + 5}"
        self.pretrain("killed", *WORDS, *SAVES, end, ranks=2)
        self.pretrain("whole", *WORDS, end, ranks=2)
        self.assertEqual(self.losses("killed"), self.losses("whole"))
        self.assertEqual(self.inspect(self.latest("killed"))["tensors"],
                         self.inspect(self.latest("whole"))["tensors"])
        self.assertEqual(list((self.folder / "killed" / "checkpoints").glob("*.part")), [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
