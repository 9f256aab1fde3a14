"""Why a run stops: what it prints, what it saves, its exit code; and that it can be continued."""

import re
import shlex
import signal
import unittest

from runs import FINISHED, IO, STOPPED_EARLY, Result, RunTest, Started, command_line

ENDLESS = "train.iterations=1000000"


class Stops(RunTest):
    def check_stop(self, name, result, code, reason, saved=True):
        """The end of a run: its code, its reason, its checkpoint; returns its last iteration."""
        self.assertEqual(result.code, code, result)
        stop = self.stop_event(name)
        self.assertEqual((stop["reason"], stop["exit_code"]), (reason, code), result)
        self.assertIn(f"stopped after iteration {stop['iteration']}: {reason}", result.out)
        self.assertIn("\ncontinue   ", result.out)
        if saved:
            self.assertEqual(self.latest(name).name, f"step-{stop['iteration']:08}.h5")
        return stop["iteration"]

    def check_continues(self, name, result, *words):
        """The command that the run printed goes on from where it stopped, for two more iterations."""
        before = len(self.losses(name))
        command = shlex.split(re.search(r"^continue   (.*)$", result.out, re.MULTILINE).group(1))
        with Started([*command, f"train.iterations={before + 2}", *words]) as started:
            again = started.finish()
        self.assertEqual(again.code, FINISHED, again)
        self.assertEqual(len(self.losses(name)), before + 2)

    def stop_by_signal(self, name, number, ranks, *words) -> Result:
        with self.start(name, ENDLESS, *words, ranks=ranks) as run:
            self.wait_until(lambda: self.events(name, "train"), run)
            run.process.send_signal(number)
            return run.finish()

    def test_sigusr1_to_the_launcher(self):
        result = self.stop_by_signal("run", signal.SIGUSR1, 2, "parallel.tensor=2")
        self.check_stop("run", result, STOPPED_EARLY, "a signal asked for it")
        self.check_continues("run", result)

    def test_sigterm_to_a_single_rank(self):
        result = self.stop_by_signal("run", signal.SIGTERM, 1)
        self.check_stop("run", result, STOPPED_EARLY, "a signal asked for it")
        self.check_continues("run", result)

    def test_time_limit(self):
        result = self.pretrain("run", ENDLESS, "--time-limit", "00:00:03", code=STOPPED_EARLY)
        self.check_stop("run", result, STOPPED_EARLY, "the time limit is near")
        self.check_continues("run", result)

    def test_exit_duration(self):
        result = self.pretrain("run", ENDLESS, "train.exit_duration=2 seconds", ranks=2,
                               code=STOPPED_EARLY)
        self.check_stop("run", result, STOPPED_EARLY, "train.exit_duration is over")
        self.check_continues("run", result, "train.exit_duration=10 minutes")

    def test_lost_output_does_not_hide_the_code(self):
        words = self.deck_words("run", ENDLESS, "train.exit_duration=1 seconds")
        command = command_line("trireme-pretrain", *words)
        with Started(["sh", "-c", 'exec "$0" "$@" >/dev/full', *command]) as run:
            result = run.finish()
        self.assertEqual(result.code, STOPPED_EARLY, result)
        self.assertIn("cannot write to standard output", result.err)

    def test_a_run_that_cannot_save_does_not_start(self):
        (self.folder / "run").mkdir()
        (self.folder / "run" / "checkpoints").symlink_to(self.folder / "absent" / "folder")
        result = self.pretrain("run", "train.iterations=3", ranks=2, code=IO)
        self.assertEqual(result.err.count("checkpoints'"), 1, result)
        self.assertEqual(self.events("run", "train"), [])

    def test_exit_interval(self):
        result = self.pretrain("run", ENDLESS, "train.exit_interval=3")
        reason = "train.exit_interval is reached"
        self.assertEqual(self.check_stop("run", result, FINISHED, reason), 3)
        self.check_continues("run", result)

    def test_finished(self):
        result = self.pretrain("run", "train.iterations=3")
        self.assertEqual(self.check_stop("run", result, FINISHED, "finished"), 3)
        self.assertTrue(re.search(r"^continue   .* train\.iterations=6$", result.out, re.MULTILINE))
        self.check_continues("run", result)
        done = self.pretrain("run", "train.iterations=5")
        self.assertEqual(self.check_stop("run", done, FINISHED, "finished"), 5)
        self.assertEqual(len(self.losses("run")), 5)

    def test_kill_switch_at_the_start(self):
        switch = self.folder / "switch"
        switch.touch()
        result = self.pretrain("run", f"train.kill_switch={switch}", ranks=2)
        reason = "the kill switch exists"
        self.assertEqual(self.check_stop("run", result, FINISHED, reason, saved=False), 0)
        self.assertEqual(self.events("run", "train"), [])
        self.assertEqual(self.checkpoints("run"), [])
        switch.unlink()
        self.check_continues("run", result)

    def test_kill_switch_in_the_middle(self):
        switch = self.folder / "switch"
        with self.start("run", ENDLESS, f"train.kill_switch={switch}", ranks=2) as run:
            self.wait_until(lambda: self.events("run", "train"), run)
            switch.touch()
            result = run.finish()
        self.check_stop("run", result, FINISHED, "the kill switch exists")
        switch.unlink()
        self.check_continues("run", result)


if __name__ == "__main__":
    unittest.main(verbosity=2)
