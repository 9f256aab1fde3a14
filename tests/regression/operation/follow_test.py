"""Watching runs: files of ranks, use of GPUs, trireme-report's answers about runs that live, stall and die."""

import csv
import json
import os
import re
import signal
import socket
import time
import unittest
from pathlib import Path
from xml.etree import ElementTree

from runs import DATA, FAILED, FINISHED, HERE, IO, PATIENCE, STOPPED_EARLY, USAGE, RunTest, layout_words, run

ENDLESS = "train.iterations=1000000"
HOST = socket.gethostname()
QUESTIONS = ["running", "GPUs busy", "no error", "deck as asked"]
WELL = ["yes", "yes", "yes", "yes"]


class Follow(RunTest):
    def look(self, name, *words):
        """One look: the exit code, the answers to the four questions, and the whole page."""
        result = run("trireme-report", "follow", self.folder / name, "--once", *words)
        answers = [re.search(rf"^{question} +(yes|NO|\?) ", result.out, re.MULTILINE)
                   for question in QUESTIONS]
        self.assertTrue(all(answers), result)
        return result.code, [answer.group(1) for answer in answers], result.out

    def follow(self, name, *words, code=FINISHED):
        """The answers and the page, the exit code being `code`."""
        found, answers, page = self.look(name, *words)
        self.assertEqual(found, code, page)
        return answers, page

    def rank_file(self, name, suffix):
        return (self.folder / name / "ranks" / f"{HOST}{suffix}").read_text()

    def wait_for(self, condition, what, patience=PATIENCE):
        deadline = time.monotonic() + patience
        while not condition():
            self.assertLess(time.monotonic(), deadline, what)
            time.sleep(0.2)

    # ---- files of ranks

    def test_rank_files_hold_what_the_ranks_print(self):
        console = self.pretrain("run", "log.rank_files=true", *layout_words(1, 1, 2),
                                ranks=2).out
        out = self.rank_file("run", ".out").splitlines()
        marker = r"\[rank {}\] --- output since \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d"
        for rank in (0, 1):
            self.assertTrue(any(re.fullmatch(marker.format(rank), line) for line in out), out)
        said = [line.removeprefix("[rank 0] ") for line in out
                if line.startswith("[rank 0] ") and "--- output since" not in line]
        self.assertEqual("\n".join(said) + "\n", console, "rank 0 keeps its console")
        self.assertEqual(len(self.rank_file("run", ".err").splitlines()), 2, "the markers alone")

    def test_a_restart_appends_and_a_fresh_run_begins_anew(self):
        self.pretrain("run", "log.rank_files=true", "train.iterations=4")
        self.pretrain("run", "log.rank_files=true", "train.iterations=8")
        self.assertEqual(self.rank_file("run", ".err").count("--- output since"), 2)
        for path in (self.folder / "run" / "checkpoints").iterdir():
            path.unlink()
        (self.folder / "run" / "ranks" / "mine.txt").write_text("kept")
        self.pretrain("run", "log.rank_files=true")
        self.assertEqual(self.rank_file("run", ".err").count("--- output since"), 1)
        self.assertTrue((self.folder / "run" / "ranks" / "mine.txt").exists())

    def test_last_words_reach_the_file_and_the_console(self):
        # On a busy machine the ranks start, and read their data, some seconds apart.
        with self.start("run", "train.iterations=100000", "log.rank_files=true", "log.every=100000",
                        "comm.timeout=6 seconds", *layout_words(1, 1, 2), ranks=2) as started:
            self.wait_until(lambda: self.events("run", "start"), started)
            self.wait_until(lambda: len(started.children()) == 2, started)
            os.kill(started.children()[1], signal.SIGSTOP)
            result = started.finish()
        self.assertIn("(comm.timeout)", result.err)
        self.wait_for(lambda: "(comm.timeout)" in self.rank_file("run", ".err"), "in the file")
        answers, page = self.follow("run", code=FAILED)
        self.assertEqual(answers[0], "NO", page)
        self.assertEqual(answers[2], "NO", page)
        self.assertIn(f"the first: {HOST}.err: rank 0: trireme-pretrain: rank 0 on {HOST}: ", page)

    # ---- GPUs

    def test_gpus_are_sampled(self):
        os.environ["LD_LIBRARY_PATH"] = os.environ["TRIREME_FAKE_NVML"]
        self.addCleanup(os.environ.pop, "LD_LIBRARY_PATH")
        self.pretrain("run", "log.gpu_every=6", *layout_words(1, 1, 2), ranks=2)
        events = self.events("run", "gpu")
        self.assertEqual([event["iteration"] for event in events], [6, 12, 18, 20])
        self.assertEqual(events[0]["gpus"], [
            {"host": HOST, "index": 0, "utilisation": 97.0, "memory": 61.0 * 2**30,
             "memory_total": 80.0 * 2**30, "temperature": 65.0, "power": 612.3},
            {"host": HOST, "index": 1, "utilisation": None, "memory": 61.0 * 2**30,
             "memory_total": 80.0 * 2**30, "temperature": 65.0, "power": None}])
        self.assertIn("GPU 0: 97 %, 62464 MiB of 81920 MiB, 65 C, 612.3 W\n",
                      self.rank_file("run", ".gpu"))
        console = (self.folder / "run" / "console.log").read_text()
        self.assertIn(" use of 2 GPUs until iteration 6 | utilisation: 97% min", console)
        page = self.follow("run")[1]
        self.assertRegex(page, rf"{HOST}:0 +97 % +61.0 GiB / 80.0 GiB +65 C +612 W\n")

    def test_a_host_without_the_library_says_so_once(self):
        result = self.pretrain("run", "log.gpu_every=1", *layout_words(1, 1, 2), ranks=2)
        self.assertEqual(result.err.count("no GPU is watched"), 1, result)
        self.assertEqual(self.rank_file("run", ".gpu").count("no GPU is watched"), 1)
        self.assertEqual(self.events("run", "gpu"), [])
        quiet = self.pretrain("quiet", "log.rank_files=true")
        self.assertEqual(quiet.err, "", "the deck does not ask for it")

    def test_timers_tell_the_time_of_each_rank(self):
        self.pretrain("run", "log.timers=true", *layout_words(1, 2, 1), ranks=2)
        event = next(event for event in self.events("run", "timers") if "rank_ms" in event)
        self.assertEqual(len(event["rank_ms"]), 2)
        times = event["timers"]
        self.assertLess(max(event["rank_ms"]), times["forward-backward"]["max_ms"] * 1.01)
        self.assertGreaterEqual(max(event["rank_ms"]), times["backward-compute"]["max_ms"])

    def test_a_rank_that_is_slower_than_the_others(self):
        # Of a model whose passes take longer than its communication: the rank mostly computes when it is stopped.
        with self.start("run", ENDLESS, "log.timers=true", "log.every=2", "model.hidden=256", *layout_words(1, 1, 2),
                        ranks=2) as started:
            self.wait_until(lambda: self.events("run", "train"), started)
            slow = next(child for child in started.children()
                        if b"OMPI_COMM_WORLD_RANK=1\0" in Path(f"/proc/{child}/environ").read_bytes())

            def is_seen():
                for _ in range(20):
                    os.kill(slow, signal.SIGCONT)
                    time.sleep(0.005)
                    os.kill(slow, signal.SIGSTOP)
                    time.sleep(0.04)
                # While it stands still the newest line stays as it is.
                page = self.look("run")[2]
                return re.search(rf"note +straggler: rank 1 on {HOST} computes ", page) and "straggler: rank 0" not in page

            self.wait_for(is_seen, "rank 1 alone is a straggler")

    # ---- answers

    def test_a_run_that_lives_stalls_and_dies(self):
        with self.start("run", ENDLESS, "log.rank_files=true", "checkpoint.at_end=false",
                        "log.every=10") as started:
            self.wait_until(lambda: len(self.events("run", "train")) > 3, started)
            self.wait_for(lambda: self.look("run")[:2] == (FINISHED, WELL), "it lives")
            page = self.look("run")[2]
            self.assertIn(" of 1000000 (", page)
            self.assertIn(", ETA ", page)

            os.kill(started.process.pid, signal.SIGSTOP)
            self.wait_for(lambda: self.look("run")[:2] == (FAILED, ["NO", *WELL[1:]]), "it stalls")
            self.assertIn("stalled: no line for ", self.look("run")[2])
            os.kill(started.process.pid, signal.SIGCONT)
            self.wait_for(lambda: self.look("run")[:2] == (FINISHED, WELL), "it resumes")

            os.kill(started.process.pid, signal.SIGKILL)
            self.wait_for(lambda: not started.running(), "it was killed")
        answers, page = self.follow("run", code=FAILED)
        self.assertEqual(answers[0], "NO", page)
        self.assertIn("killed, or failed without a message", page)

    def test_follows_until_the_end(self):
        with self.start("run", "train.iterations=400", "log.rank_files=true",
                        "log.every=20") as started:
            self.wait_until(lambda: self.events("run", "start"), started)
            result = run("trireme-report", "follow", self.folder / "run", "--every", "0.2")
            self.assertEqual(result.code, FINISHED, result)
            self.assertEqual(started.finish().code, FINISHED)
        self.assertIn("running       yes  finished: iteration 400, exit code 0\n", result.out)
        self.assertNotIn("\033", result.out, "this is no terminal")

    def test_a_run_that_was_stopped_and_restarted(self):
        with self.start("run", ENDLESS, ranks=2) as started:
            self.wait_until(lambda: self.events("run", "train"), started)
            started.process.send_signal(signal.SIGUSR1)
            self.assertEqual(started.finish().code, STOPPED_EARLY)
        answers, page = self.follow("run", code=FAILED)
        self.assertEqual(answers[0], "NO", page)
        self.assertIn("exit code 75; the same command resumes the run", page)
        done = self.stop_event("run")["iteration"]
        self.pretrain("run", f"train.iterations={done + 3}", ranks=2)
        answers, page = self.follow("run")
        self.assertEqual(answers, ["yes", "yes", "yes", "yes"], page)
        self.assertIn(f"(start 2, from iteration {done})", page)

    def test_the_deck_is_compared(self):
        self.pretrain("run", "optimizer.clip=0.5")
        deck = HERE / "tiny.yaml"
        words = [word for word in self.deck_words("run") if "=" in str(word)]
        page = self.follow("run", "--deck", deck, *words, "optimizer.clip=0.5")[1]
        self.assertRegex(page, r"deck as asked +yes ")
        page = self.follow("run", "--deck", deck, *words, code=FAILED)[1]
        self.assertIn("optimizer.clip is 0.5, requested 1", page)
        page = self.follow("run", "--deck", self.folder / "none.yaml", code=FAILED)[1]
        self.assertIn("cannot compare: ", page)

    def test_what_is_no_run_is_refused(self):
        (self.folder / "empty").mkdir()
        for words, code, text in [
                (["follow", self.folder / "empty", "--once"], IO, "is no run folder, or its run"),
                (["follow", self.folder / "none", "--once"], IO, "there is no run folder"),
                (["follow"], USAGE, "no run folder and no job is given"),
                (["follow", self.folder, "a=1"], USAGE, "belongs to a --deck"),
                (["summary"], USAGE, "no run folder and no log is given"),
                (["summary", self.folder / "empty"], IO, "it has no metrics.jsonl"),
                (["summary", self.folder, "--csv", "--json"], USAGE, "exclude each other"),
                (["plot", self.folder], USAGE, "no output is given: add -o FILE.svg"),
                (["plot", self.folder, "-o", "x.png"], USAGE, "plots are SVG files; name one such as x.svg"),
                (["plot", self.folder, "-o", "x.svg", "--x", "token"], USAGE, "did you mean 'tokens'?"),
                (["diff", self.folder], USAGE, "expected two run folders or logs, not 1"),
                (["page"], USAGE, "unknown command 'page': expected follow, summary, plot, html, trace, export, diff or goodput"),
                (["html"], USAGE, "no run folder and no log is given"),
                ([], USAGE, "no command is given")]:
            result = run("trireme-report", *words)
            self.assertEqual(result.code, code, result)
            self.assertIn(text, result.err)
            self.assertEqual(result.out, "", result)

    def test_jobs_are_looked_up(self):
        """With a stand-in for scontrol: the folder comes from the job's output."""
        self.pretrain("run", "log.rank_files=true")
        (self.folder / "job.out").write_text("run folder run\n")
        scontrol = self.folder / "bin" / "scontrol"
        scontrol.parent.mkdir()
        scontrol.write_text(
            "#!/bin/sh\n[ \"$*\" = 'show job -o 12' ] || { echo 'slurm_load_jobs error: Invalid job "
            "id specified' >&2; exit 1; }\n"
            f"echo 'JobId=12 JobState=COMPLETED Reason=None WorkDir={self.folder} "
            f"StdErr={self.folder}/job.out StdIn=/dev/null StdOut={self.folder}/job.out Power='\n")
        scontrol.chmod(0o755)
        path = os.environ["PATH"]
        self.addCleanup(os.environ.__setitem__, "PATH", path)
        os.environ["PATH"] = f"{scontrol.parent}:{path}"
        result = run("trireme-report", "follow", "12", "--once")
        self.assertEqual(result.code, FINISHED, result)
        self.assertIn(f"run           {self.folder}/run\n", result.out)
        self.assertIn("3 files read", result.out, "the job's own output, too")
        result = run("trireme-report", "follow", "13", "--once")
        self.assertEqual(result.code, DATA, result)
        self.assertIn("Invalid job id specified; name the run folder instead", result.err)

    def test_summary_reads_runs_and_consoles_alike(self):
        self.pretrain("run", "log.every=5")
        self.pretrain("other", "log.every=5", "schedule.peak=1e-3")
        result = run("trireme-report", "summary", "--json", self.folder / "run",
                     self.folder / "run" / "console.log", self.folder / "other")
        self.assertEqual(result.code, FINISHED, result)
        folder, console, other = json.loads(result.out)
        last = self.events("run", "train")[-1]
        self.assertEqual(folder["iterations"], 20)
        self.assertEqual(folder["last_loss"], last["loss"])
        self.assertNotEqual(other["last_loss"], last["loss"])
        # The console's times have one decimal, which of short iterations is much; its TFLOP/s have three, and both round.
        tolerance = 0.02 + 2 * 0.05 / folder["ms_per_iteration"]
        for key, value in folder.items():
            if isinstance(value, float):
                self.assertAlmostEqual(console[key], value, delta=tolerance * value + 5e-4, msg=key)
        picture = self.folder / "x.svg"
        result = run("trireme-report", "plot", self.folder / "run", self.folder / "run" / "console.log",
                     self.folder / "other", "-o", picture, "--x", "samples")
        self.assertEqual((result.code, result.out), (FINISHED, f"{picture}: 3 panels of 3 runs\n"), result)
        names = [text.text for text in ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}text")]
        self.assertIn(str(self.folder / "other"), names)
        self.assertIn("learning rate", names)
        result = run("trireme-report", "export", "--csv", self.folder / "run")
        rows = list(csv.DictReader(result.out.splitlines()))
        self.assertEqual([float(row["loss"]) for row in rows if row["kind"] == "train"],
                         [event["loss"] for event in self.events("run", "train")])
        result = run("trireme-report", "diff", self.folder / "run", self.folder / "other")
        self.assertEqual(result.code, FAILED, result)
        self.assertRegex(result.out, r"deck: 1 different key\n  schedule\.peak: \S+ \| 0\.001\n"
                                     r"loss: different in 4 common training lines, iterations 5 to 20\n")
        result = run("trireme-report", "diff", self.folder / "run", self.folder / "run")
        self.assertEqual(result.code, FINISHED, result)
        log = self.folder / "none.log"
        log.write_text("nothing\n")
        result = run("trireme-report", "summary", self.folder / "run", log)
        self.assertEqual(result.code, DATA)
        self.assertIn("no training line in it", result.err)
        self.assertEqual(len(result.out.splitlines()), 3, "the others' rows are there")
        starting = self.folder / "starting"
        starting.mkdir()
        (starting / "metrics.jsonl").write_text("")
        for command, page in ("html", "x.html"), ("plot", "y.svg"):
            result = run("trireme-report", command, self.folder / "run", starting, "-o", self.folder / page)
            self.assertEqual(result.code, FINISHED, result)
            self.assertIn(f"trireme-report: {starting}: no training line in it\n", result.err)
            self.assertTrue((self.folder / page).exists())
        result = run("trireme-report", "summary", self.folder / "run", self.folder, self.folder / "other")
        self.assertEqual(result.code, IO, result)
        self.assertEqual(
            result.err,
            f"trireme-report: '{self.folder}' is no run folder: it has no metrics.jsonl\n")
        self.assertEqual(len(result.out.splitlines()), 3, "the others' rows are there")


if __name__ == "__main__":
    unittest.main(verbosity=2)
