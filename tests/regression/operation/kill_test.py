"""A rank is killed at a random moment of a run that saves at every iteration: the job ends, what
`latest` names is whole, and the run resumes as if nothing had happened."""

import os
import random
import re
import shutil
import signal
import time
import unittest

from runs import BIN, MPIEXEC, RunTest, Started, dataset

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


class Rewind(RunTest):
    """train.spike.back. Fluctuations of the loss serve as spikes."""

    ITERATIONS = 30
    SPIKES = [f"train.iterations={ITERATIONS}", "checkpoint.every=4", "train.spike.above=1.5",
              "train.spike.window=8", "train.spike.limit=3"]

    def rewinds(self, name):
        """Of each: the iteration with the spike, that of the checkpoint, the samples that are skipped."""
        console = (self.folder / name / "console.log").read_text()
        return [tuple(map(int, found)) for found in
                re.findall(r" iteration (\d+): .*: resuming from '.*' of iteration (\d+), without the data "
                           r"of (\d+) samples", console)]

    def state(self, name):
        """The newest checkpoint without the deck and its path."""
        found = self.inspect(self.latest(name))
        return found["attributes"], found["tensors"]

    def test_rewinds_are_the_same_on_two_ranks_and_after_kills(self):
        words = [*self.SPIKES, "train.spike.back=2"]
        self.pretrain("whole", *words)
        rewinds = self.rewinds("whole")
        self.assertEqual(len(rewinds), 3, "train.spike.limit")
        for spike, checkpoint, samples in rewinds:
            self.assertGreaterEqual(samples, 8 * (spike - checkpoint))  # batch.global
            # The newest but one; the first iterations have one alone.
            self.assertEqual(checkpoint, max((spike - 1) // 4 * 4 - 4, 4))
        self.assertEqual(len(self.losses("whole")), self.ITERATIONS)
        attributes, _ = self.state("whole")
        self.assertEqual(attributes["passed_samples"],
                         8 * sum(spike - checkpoint for spike, checkpoint, _ in rewinds))

        self.pretrain("two", *words, "parallel.data=2", ranks=2)
        self.assertEqual(self.rewinds("two"), rewinds)
        self.assert_close(self.losses("two"), self.losses("whole"), 1e-5, "two data ranks")

        chance = random.Random(3)
        part = self.folder / "killed" / "checkpoints" / f"step-{rewinds[0][1]:08}.h5.part"
        published = part.with_suffix("")
        slow = ["env", f"LD_PRELOAD={os.environ['TRIREME_IO_FAULTS']}", "TRIREME_FAULT=slow",
                f"TRIREME_FAULT_FILES={part.name}"]
        # An iteration takes 50 ms and more: no machine is so quick that the run ends before it is killed.
        paced = [*slow, "TRIREME_FAULT_FILES=metrics.jsonl"]
        deck = [BIN / "trireme-pretrain", *self.deck_words("killed", *words, "parallel.data=2")]
        launcher = [MPIEXEC, "--oversubscribe", "--bind-to", "none", "-n", "2"]
        # While the rewound state is saved, which takes seconds; and after that.
        for storage, wait in ((slow, lambda: part.exists() and published.exists()),
                              (paced, lambda: len(self.rewinds("killed")) > 0),
                              (paced, lambda: len(self.rewinds("killed")) > 1)):
            with Started([*launcher, *storage, *deck]) as run:
                self.wait_until(wait, run)
                time.sleep(chance.uniform(0, 0.02))
                os.kill(chance.choice(run.children()), signal.SIGKILL)
                self.assertNotEqual(run.finish(patience=30).code, 0)
        self.pretrain("killed", *words, "parallel.data=2", ranks=2)
        self.assertEqual(self.losses("killed"), self.losses("two"))
        self.assertEqual(self.state("killed"), self.state("two"))

    def test_more_data_is_skipped_and_old_checkpoints_go(self):
        self.pretrain("run", *self.SPIKES, "train.spike.back=1", "train.spike.skip=9",
                      "train.spike.limit=1", "checkpoint.keep=2", "checkpoint.async=true",
                      f"checkpoint.local.path={self.folder / 'disk'}", "checkpoint.local.every=1")
        (spike, checkpoint, samples), = self.rewinds("run")
        self.assertEqual((checkpoint, samples), ((spike - 1) // 4 * 4, 8 * 9))
        self.assertEqual(self.checkpoints("run"), ["step-00000028.h5", "step-00000030.h5"])
        self.assertEqual(list((self.folder / "run" / "checkpoints").glob("*superseded*")), [])
        console = (self.folder / "run" / "console.log").read_text()
        self.assertEqual(console.count("no local checkpoint of iteration"), 1)
        self.assertIn("no local checkpoint of iteration 2: that of iteration 1 is still being written", console)

    def test_a_run_of_samples_takes_no_more_after_it_went_back_to_another_batch(self):
        words = ["train.iterations=", "train.samples=200", "checkpoint.every=1 iterations",
                 "evaluate.every=1 iterations", "evaluate.iterations=1"]
        self.pretrain("run", *words, "batch.global=16", "train.exit_interval=5 iterations")
        self.pretrain("run", *words, "batch.global=8", "train.spike.above=1e-6", "train.spike.window=2",
                      "train.spike.back=5", "train.spike.limit=1")
        (spike, checkpoint, _), = self.rewinds("run")
        self.assertEqual(checkpoint, spike - 5)
        self.assertLess(checkpoint, 5)
        train = self.events("run", "train")
        self.assertEqual(train[-1]["consumed_samples"], 200)
        self.assertEqual(len(self.losses("run")), checkpoint + (200 - 16 * checkpoint) // 8)
        self.assertEqual(len(self.events("run", "eval")), len(train))
        totals = re.findall(r"(?m)^ iteration +\d+/ +(\d+) \|", (self.folder / "run" / "console.log").read_text())
        self.assertEqual(totals[:5] + totals[-1:], ["12"] * 5 + [str(len(train))])  # 200 / 16
        self.assertEqual(totals[5], "20", "80 samples in 5 iterations, 120 in 15")

    def test_without_data_to_skip_the_update_is_skipped(self):
        """Two datasets without weights, of which the run takes all samples but a few."""
        again = self.folder / "again"
        for ending in (".bin", ".idx"):
            shutil.copy(f"{dataset()}{ending}", f"{again}{ending}")
        result = self.pretrain("run", *self.SPIKES, f"data.train=[{dataset()}, {again}]", "data.split=1,0,0",
                               "train.iterations=88", "train.spike.back=1", "train.spike.above=0.5", "parallel.data=2",
                               ranks=2)
        self.assertEqual(self.rewinds("run"), [])
        self.assertIn("train.spike.back: no data is left to skip: the train split of 2 datasets without weights has "
                      "706 samples", result.out)
        self.assertEqual(len(self.losses("run")), 88)

    def test_without_a_checkpoint_the_update_is_skipped(self):
        self.pretrain("run", *self.SPIKES, "train.spike.back=1", "checkpoint.every=29")
        self.assertEqual(self.rewinds("run"), [])
        self.assertGreater(sum(event["skipped"] for event in self.events("run", "train")), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
