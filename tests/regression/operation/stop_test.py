"""Why a run stops: what it prints, what it saves, its exit code; and that it can be continued."""

import os
import re
import shlex
import shutil
import signal
import time
import unittest
import unittest.mock
from pathlib import Path

from runs import DATA, DECK, FINISHED, IO, STOPPED_EARLY, Result, RunTest, Started, command_line, dataset

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
        """The command that the run printed resumes where it stopped, for two more iterations."""
        before = len(self.losses(name))
        command = shlex.split(re.search(r"^continue   (.*)$", result.out, re.MULTILINE).group(1))
        # Nothing else has to be set where it is printed, not even for root.
        with unittest.mock.patch.dict(os.environ):
            for variable in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"):
                os.environ.pop(variable, None)
            with Started([*command, f"train.iterations={before + 2}", *words]) as started:
                again = started.finish()
        self.assertEqual(again.code, FINISHED, again)
        self.assertEqual(len(self.losses(name)), before + 2)

    def stop_by_signal(self, name, number, ranks, *words) -> Result:
        with self.start(name, ENDLESS, *words, ranks=ranks) as run:
            self.wait_until(lambda: self.events(name, "train"), run)
            run.process.send_signal(number)
            return run.finish()

    def test_a_length_given_by_set_before_an_option(self):
        result = self.pretrain("run", "--set", "train.iterations=2", "--time-limit", "1:00:00")
        self.assertEqual(self.check_stop("run", result, FINISHED, "finished"), 2)
        self.check_continues("run", result)

    def test_sigusr1_to_the_launcher(self):
        result = self.stop_by_signal("run", signal.SIGUSR1, 2, "parallel.tensor=2")
        self.check_stop("run", result, STOPPED_EARLY, "a signal asked for it")
        self.check_continues("run", result)

    def test_sigterm_to_a_single_rank(self):
        result = self.stop_by_signal("run", signal.SIGTERM, 1)
        self.check_stop("run", result, STOPPED_EARLY, "a signal asked for it")
        self.check_continues("run", result)

    def test_a_signal_in_an_evaluation_saves_at_once(self):
        """The job's time ends in the evaluation, of some minutes: nothing is lost."""
        words = ["train.iterations=6", "checkpoint.every=1000", "parallel.pipeline=2"]
        with self.start("run", *words, "evaluate.every=3", "evaluate.iterations=20000", ranks=2) as run:
            self.wait_until(lambda: len(self.losses("run")) == 3, run)
            run.process.send_signal(signal.SIGUSR1)
            self.wait_until(lambda: self.events("run", "checkpoint"), run)
        self.assertEqual(self.events("run", "eval"), [])
        self.assertEqual(self.latest("run").name, "step-00000003.h5")
        self.pretrain("run", *words, ranks=2)
        whole = self.pretrain("whole", *words, ranks=2)
        self.assertEqual(self.losses("run"), self.losses("whole"), whole)

    def test_a_checkpoint_of_a_signal_is_not_written_again(self):
        """Neither where checkpoint.every is due in the same iteration nor at the stop."""
        words = ["train.iterations=6", "checkpoint.every=3", "evaluate.every=3", "evaluate.iterations=200"]
        with self.start("run", *words) as run:
            self.wait_until(lambda: len(self.losses("run")) == 3, run)
            run.process.send_signal(signal.SIGUSR1)
            self.check_stop("run", run.finish(), STOPPED_EARLY, "a signal asked for it")
        self.assertEqual([event["iteration"] for event in self.events("run", "checkpoint")], [3])

    def test_validation_data_that_is_cut_loses_no_iteration(self):
        valid = self.folder / "valid"
        for ending in (".bin", ".idx"):
            shutil.copy(f"{dataset()}{ending}", f"{valid}{ending}")
        words = [ENDLESS, f"data.valid={valid}", "data.split=1,0,0", "evaluate.every=100"]
        with self.start("run", *words, ranks=2) as run:
            self.wait_until(lambda: self.events("run", "eval"), run)
            os.truncate(f"{valid}.bin", 100)
            result = run.finish()
        iteration = self.check_stop("run", result, IO, "a dataset has changed or cannot be read")
        self.assertEqual(iteration % 100, 99)
        self.assertEqual(result.err.count("valid.bin' has 100 bytes; it had"), 1, result)

    def test_a_bad_token_in_the_validation_data_loses_no_iteration(self):
        """Of a file that is damaged; its record has the largest id that there was."""
        valid = self.folder / "valid"
        for ending in (".bin", ".idx", ".json"):
            shutil.copy(f"{dataset()}{ending}", f"{valid}{ending}")
        ids = bytearray(Path(f"{valid}.bin").read_bytes())
        ids[2 * 5000:2 * 5000 + 2] = (999).to_bytes(2, "little")
        Path(f"{valid}.bin").write_bytes(ids)
        result = self.pretrain("run", ENDLESS, f"data.valid={valid}", "data.split=1,0,0", "evaluate.every=5",
                               "evaluate.iterations=1", "parallel.tensor=2", ranks=2, code=DATA)
        iteration = self.check_stop("run", result, DATA, "a dataset holds bad data")
        self.assertEqual(iteration % 5, 4)
        self.assertEqual(result.err.count("token id 999 in document "), 1, result)

    def test_sigterm_twice_in_a_row(self):
        seconds = 1.0
        while seconds > 0.5:  # of two that come further apart the second one ends the run immediately
            shutil.rmtree(self.folder / "run", ignore_errors=True)
            with self.start("run", ENDLESS) as run:
                self.wait_until(lambda: self.events("run", "train"), run)
                first = time.monotonic()
                run.process.send_signal(signal.SIGTERM)
                time.sleep(0.0005)
                run.process.send_signal(signal.SIGTERM)
                seconds = time.monotonic() - first
                result = run.finish()
        self.check_stop("run", result, STOPPED_EARLY, "a signal asked for it")

    def test_sighup_to_a_single_rank(self):
        result = self.stop_by_signal("run", signal.SIGHUP, 1)
        self.check_stop("run", result, STOPPED_EARLY, "a signal asked for it")

    def test_nohup(self):
        command = command_line("trireme-pretrain", *self.deck_words("run", ENDLESS))
        with Started(["nohup", *command]) as run:
            self.wait_until(lambda: self.events("run", "train"), run)
            run.process.send_signal(signal.SIGHUP)
            lines = len(self.events("run", "train"))
            self.wait_until(lambda: len(self.events("run", "train")) > lines + 5, run)
            run.process.terminate()
            self.assertEqual(run.finish().code, STOPPED_EARLY)

    def test_time_limit(self):
        result = self.pretrain("run", ENDLESS, "--time-limit", "00:00:03", code=STOPPED_EARLY)
        self.check_stop("run", result, STOPPED_EARLY, "the time limit is near")
        # Two iterations may take longer on a busy machine.
        self.assertRegex(result.out, r"(?m)^continue .* --time-limit 00:00:03\b")
        result.out = result.out.replace("--time-limit 00:00:03", "--time-limit 01:00:00")
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

    def test_a_finished_run_whose_output_is_lost_has_finished(self):
        for name, redirection in [("full", ">/dev/full"), ("closed", ">&-")]:
            words = self.deck_words(name, "train.iterations=3")
            command = command_line("trireme-pretrain", *words)
            with Started(["sh", "-c", f'exec "$0" "$@" {redirection}', *command]) as run:
                result = run.finish()
            self.assertEqual(result.code, FINISHED, result)
            self.assertIn("warning: cannot write to standard output", result.err)
            self.assertEqual(self.stop_event(name)["exit_code"], FINISHED)
            console = (self.folder / name / "console.log").read_text()
            self.assertIn("stopped after iteration 3: finished (exit code 0)", console)
            self.assertEqual(len((self.folder / name / "metrics.jsonl").read_text().splitlines()),
                             len([line for kind in ("start", "train", "memory", "checkpoint", "stop")
                                  for line in self.events(name, kind)]))

    def test_an_unwritable_log_is_an_error(self):
        folder = self.folder / "run"
        folder.mkdir()
        (folder / "console.log").symlink_to("/dev/full")
        result = self.pretrain("run", "train.iterations=3", code=IO)
        self.assertIn(f"cannot write '{folder}/console.log'", result.err)

    def test_a_folder_whose_name_has_a_newline(self):
        self.fails(DECK, "must be one line without control characters", "--output",
                   f"{self.folder}/a\nb")
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_a_run_notices_that_its_folder_was_renamed(self):
        with self.start("run", ENDLESS) as first:
            self.wait_until(lambda: self.events("run", "train"), first)
            (self.folder / "run").rename(self.folder / "renamed")
            self.pretrain("run", "train.iterations=1")
            first.process.terminate()
            result = first.finish()
        self.assertEqual(result.code, IO, result)
        self.assertIn("was renamed, deleted or replaced while the run was writing to it", result.err)
        self.assertEqual(self.checkpoints("run"), ["step-00000001.h5"])
        self.assertEqual(self.checkpoints("renamed"), [])

    def test_a_second_run_is_kept_out_without_the_lock_file(self):
        with self.start("run", ENDLESS) as first:
            self.wait_until(lambda: self.events("run", "train"), first)
            (self.folder / "run" / ".lock").unlink()
            result = self.pretrain("run", "train.iterations=1", code=IO)
            self.assertIn("another run is using the run folder", result.err)

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

    def test_no_iteration_is_left_out_of_the_lines(self):
        """Those since the last line are reported at a stop: the next start does not know of them."""
        words = ["train.iterations=12", "log.every=4", "precision.compute=fp16", "precision.loss_scale.initial=1e12",
                 "precision.loss_scale.hysteresis=1"]
        for _ in range(2):
            self.pretrain("run", *words, "train.exit_interval=6")
        lines = self.events("run", "train")
        self.assertEqual([line["iteration"] for line in lines], [4, 6, 8, 12])
        skipped = self.inspect(self.latest("run"))["attributes"]["skipped"]
        self.assertGreater(skipped, 4)
        self.assertEqual(sum(line["skipped"] for line in lines), skipped)

    def test_finished(self):
        result = self.pretrain("run", "train.iterations=3")
        self.assertEqual(self.check_stop("run", result, FINISHED, "finished"), 3)
        self.assertTrue(re.search(r"^continue   .* train\.iterations=6$", result.out, re.MULTILINE))
        self.check_continues("run", result)
        done = self.pretrain("run", "train.iterations=5")
        self.assertEqual(self.check_stop("run", done, FINISHED, "finished"), 5)
        self.assertEqual(len(self.losses("run")), 5)
        shorter = self.pretrain("run", "train.iterations=2")
        self.assertRegex(shorter.out, r"(?m)^continue   .* train\.iterations=10$")

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
