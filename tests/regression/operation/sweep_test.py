"""Sweeps: all runs on this machine, some at a time; kills and signals at any moment; Slurm arrays, with a
stand-in for Slurm's programs."""

import csv
import io
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import time
import unittest
from pathlib import Path

from runs import BIN, DECK, FINISHED, IO, PATIENCE, STOPPED_EARLY, RunTest, Started, dataset, run, HERE

ITERATIONS = 12

# Four short runs, two of them on two ranks.
SWEEP = """
sweep:
  parallel.tensor: [1, 2]
  schedule.peak: [1e-3, 3e-3]
  jobs: 2
"""
NAMES = [f"tensor={tensor},peak={peak}" for tensor in (1, 2) for peak in ("1e-3", "3e-3")]


class SweepTest(RunTest):
    def setUp(self):
        super().setUp()
        self.deck = self.folder / "lr.yaml"
        self.write_deck()

    def write_deck(self, section=SWEEP):
        tiny = (HERE / "tiny.yaml").read_text()
        tiny = tiny.replace("data:\n", f"data:\n  train: {dataset()}\n")
        self.deck.write_text(tiny + f"run: {{output: {self.folder / 'out'}, device: host}}\n" + section)

    def words(self, *words, task="run"):
        return [BIN / "trireme-sweep", task, self.deck, f"train.iterations={ITERATIONS}",
                "checkpoint.every=1", "checkpoint.keep=2", "sweep.jobs=2", *words]

    def sweep(self, *words, code=FINISHED, task="run"):
        with Started(list(map(str, self.words(*words, task=task)))) as started:
            result = started.finish()
        self.assertEqual(result.code, code, result)
        return result

    def run_folder(self, name):
        return f"out/{name}"

    def assert_all_trained(self):
        """Every run reports each of its iterations once, in order, and finished."""
        for name in NAMES:
            self.assertEqual(len(self.losses(self.run_folder(name))), ITERATIONS, name)
            self.assertEqual(self.stop_event(self.run_folder(name))["exit_code"], 0, name)

    def assert_right(self):
        """The losses are those of runs started by hand."""
        for name in NAMES:
            self.assertEqual(self.losses(self.run_folder(name)), self.by_hand(name), name)

    def by_hand(self, name):
        tensor, peak = re.fullmatch("tensor=(.*),peak=(.*)", name).groups()
        words = [self.deck, "sweep=", f"train.iterations={ITERATIONS}", f"parallel.tensor={tensor}",
                 f"schedule.peak={peak}", f"run.output={self.folder / 'hand' / name}"]
        if not (self.folder / "hand" / name).exists():
            result = run("trireme-pretrain", *words, ranks=int(tensor))
            self.assertEqual(result.code, FINISHED, result)
        return self.losses(f"hand/{name}")


class Local(SweepTest):
    def test_all_runs_and_again(self):
        first = self.sweep()
        self.assertTrue(first.out.endswith("4 runs: 4 finished\n"), first)
        self.assert_all_trained()
        self.assert_right()
        before = {path: path.stat().st_mtime_ns for path in (self.folder / "out").glob("*/metrics.jsonl")}
        self.assertEqual(self.sweep().out, "4 runs: 4 finished\n")
        after = {path: path.stat().st_mtime_ns for path in (self.folder / "out").glob("*/metrics.jsonl")}
        self.assertEqual(before, after, "a finished run was started again")

        status = self.sweep(task="status").out.splitlines()
        self.assertEqual(status[0].split(), ["run", "state", "iterations", "loss"])
        self.assertRegex(status[1], rf"^tensor=1,peak=1e-3  finished +{ITERATIONS}/{ITERATIONS}  \d\.\d{{4}}$")
        rows = list(csv.DictReader(io.StringIO(self.sweep("--csv", task="table").out)))
        self.assertEqual([row["run"] for row in rows], NAMES)
        for row in rows:
            self.assertEqual(row["parallel.tensor"], row["run"][7])
            last = self.losses(self.run_folder(row["run"]))[-1]
            self.assertEqual(row["loss"], f"{last:.4f}")
            times = sorted(event["ms"] for event in self.events(self.run_folder(row["run"]), "train")[1:])
            self.assertEqual(row["ms/iteration"], f"{times[len(times) // 2]:.1f}")
            self.assertGreater(float(row["tokens/s"]), 0)
            self.assertGreater(float(row["memory MiB"]), 5)

        # More iterations are asked: every run resumes.
        longer = f"train.iterations={ITERATIONS + 5}"
        self.assertIn("changed (train.iterations was 12)", self.sweep(longer, task="status").out)
        self.sweep(longer)
        self.assertTrue(self.sweep(longer, task="status").out.endswith("4 runs: 4 finished\n"))
        self.assertEqual(len(self.losses(self.run_folder(NAMES[0]))), ITERATIONS + 5)

        # The layout of finished runs is theirs. Nothing would be trained with other keys.
        self.assertTrue(self.sweep(longer, "parallel.zero=0").out.endswith("4 runs: 4 finished\n"))
        for words, before in ((("optimizer.clip=0.5",), "optimizer.clip = 1 (0.5 now)"),
                              (("train.iterations=5",), f"train.iterations = {ITERATIONS + 5} (5 now)")):
            result = self.sweep(longer, *words, code=DECK)
            self.assertIn(f"out/{NAMES[0]}: nothing is left to train after iteration {ITERATIONS + 5}, which was "
                          f"trained with {before}; choose another run.output", result.err)
            self.assertIn("\n4 errors; nothing was started.", result.err)

        # Another model is another sweep.
        result = self.sweep("model.layers=8", code=DECK)
        self.assertIn("trained with model.layers = 4, which is 8 now; move the folder away", result.err)
        self.assertIn("\n4 errors; nothing was started.", result.err)
        self.assertIn("4 changed", self.sweep("model.layers=8", task="status").out)

    def test_errors_before_anything_starts(self):
        result = self.sweep("sweep.parallel.tensor=[1, 3]", "sweep.schedule.peak=[1e-3, -1]", code=DECK)
        self.assertIn("parallel.tensor = 3 does not divide model.heads = 4", result.err)
        self.assertIn("schedule.peak = -1: must be", result.err)
        self.assertIn("\n2 errors; nothing was started.", result.err)
        self.assertFalse((self.folder / "out").exists())
        result = run("trireme-pretrain", self.deck)
        self.assertEqual(result.code, DECK)
        self.assertIn("start them with 'trireme-sweep", result.err)

    def test_checkpoints_to_load_are_compared_before_anything_starts(self):
        self.pretrain("start", "train.iterations=1")
        load = f"checkpoint.load: {self.folder / 'start'}"
        self.write_deck(f"\nsweep: {{cases: {{wide: {{model.hidden: 64}}, loads: {{model.hidden: 64, {load}}}}}}}\n")
        result = self.sweep(code=DECK)
        self.assertIn("model.hidden = 64, but the checkpoint was written with 32", result.err)
        self.assertIn("(run 'loads')", result.err)
        self.assertFalse((self.folder / "out").exists())
        self.write_deck(f"\nsweep: {{cases: {{wide: {{model.hidden: 64}}, loads: {{{load}}}}}}}\n")
        self.assertTrue(self.sweep().out.endswith("2 runs: 2 finished\n"))

    def test_what_fails_is_named_and_tried_again(self):
        self.write_deck("\nsweep: {run.seed: [1, 2]}\n")
        (self.folder / "out").mkdir()
        (self.folder / "out" / "seed=1").write_text("a file where a folder should be")
        result = self.sweep(code=1)
        self.assertIn("seed=1: failed with exit code 74", result.out)
        self.assertIn("cannot make the run folder", result.out)
        self.assertTrue(result.out.endswith("2 runs: 1 failed, 1 finished\n"), result)
        (self.folder / "out" / "seed=1").unlink()
        self.assertTrue(self.sweep().out.endswith("2 runs: 2 finished\n"))

    def test_runs_too_large_are_left_out(self):
        result = self.sweep("--max-ranks=1")
        self.assertIn("tensor=2,peak=1e-3: too large: 2 ranks, but --max-ranks 1", result.out)
        self.assertTrue(result.out.endswith("4 runs: 2 finished, 2 too large\n"), result)

    def test_each_run_has_its_own_session_folder(self):
        """Of Open MPI 4.1's launchers that share one, an mpirun that ends removes it before another that starts has used it."""
        seen, launcher = self.folder / "seen", self.folder / "launcher"
        launcher.write_text(f"""#!/bin/bash
[ -d "$OMPI_MCA_orte_tmpdir_base" ] && echo "$OMPI_MCA_orte_tmpdir_base" >>{seen}
exec mpirun --oversubscribe --bind-to none -n "$@"
""")
        launcher.chmod(0o755)
        self.assertTrue(self.sweep("--launcher", f"{launcher} {{ranks}}").out.endswith("4 runs: 4 finished\n"))
        folders = seen.read_text().splitlines()
        self.assertEqual(len(set(folders)), 4, folders)
        self.assertEqual([folder for folder in folders if Path(folder).exists()], [])

    def test_a_rank_that_is_killed_after_a_save_stops_its_run_early(self):
        launcher = self.folder / "launcher"
        launcher.write_text("#!/bin/bash\nmpirun --allow-run-as-root --oversubscribe --bind-to none -n \"$@\"\nexit 137\n")
        launcher.chmod(0o755)
        result = self.sweep("--launcher", f"{launcher} {{ranks}}", "checkpoint.every=1")  # the ranks do finish
        self.assertRegex(result.out, f"{re.escape(NAMES[0])}: stopped early after \\w+ \\(a rank was killed: exit code 137\\)")
        self.assertNotIn("failed", result.out)
        launcher.write_text("#!/bin/bash\nexit 137\n")
        result = self.sweep("--launcher", f"{launcher} {{ranks}}", f"run.output={self.folder}/other", code=1)
        self.assertRegex(result.out, f"{re.escape(NAMES[0])}: failed with exit code 137 after \\w+: see ")

    def test_what_a_launcher_says_is_shown_without_its_lines(self):
        launcher = self.folder / "launcher"
        launcher.write_text("#!/bin/bash\necho ----; echo 'No such host: x'; echo ----; exit 3\n")
        launcher.chmod(0o755)
        result = self.sweep("--launcher", f"{launcher} {{ranks}}", code=1)
        self.assertRegex(result.out, f"{re.escape(NAMES[0])}: failed with exit code 3 after \\w+: No such host: x; see ")

    def test_printed_commands_run(self):
        printed = self.sweep("--print").out
        self.assertFalse((self.folder / "out").exists())
        commands = [line for line in printed.splitlines() if line.startswith("  ")]
        self.assertEqual(len(commands), 4)
        subprocess.run(commands[0], shell=True, check=True, stdout=subprocess.DEVNULL)
        self.assertEqual(len(self.losses(self.run_folder(NAMES[0]))), ITERATIONS)


class Inputs(RunTest):
    """The sweeps of inputs/, planned on this machine."""

    def planned(self, deck, *words):
        result = run("trireme-sweep", "table", HERE.parents[1] / "inputs" / "sweeps" / deck, "--csv",
                     f"run.output={self.folder}", *words)
        self.assertEqual(result.code, FINISHED, result)
        return list(csv.DictReader(io.StringIO(result.out)))

    def test_dlperf(self):
        rows = self.planned("dlperf.yaml", "--max-ranks=8", "--beside",
                            HERE.parents[1] / "inputs" / "sweeps" / "dlperf-published.csv")
        self.assertEqual(len(rows), 18)
        layouts = []
        for row in rows:
            case = re.fullmatch(r"(?:DP_|MP_|2D_|PP_)+(\d+)x(\d+)x(\d+)_(\d+)_(\d+)x(\d+)", row["run"])
            keys = ["parallel.data", "parallel.tensor", "parallel.pipeline", "batch.global",
                    "model.hidden", "model.layers"]
            self.assertEqual([row[key] for key in keys], list(case.groups()))
            layouts.append(case.groups())
            ranks = int(case[1]) * int(case[2]) * int(case[3])
            if ranks > 8:
                self.assertEqual(row["state"], "too large")
            # What was published agrees with itself: a case's throughput is its batch by its latency.
            for program in ("Megatron", "OneFlow"):
                throughput = int(row["batch.global"]) / float(row[f"{program} ms"]) * 1e3
                self.assertAlmostEqual(throughput / float(row[f"{program} samples/s"]), 1, delta=0.005)
        self.assertEqual(len(set(layouts)), 16, "two pairs are the same layout")

    def test_learning_rate(self):
        self.assertEqual(len(self.planned("learning-rate.yaml")), 8)


class Kills(SweepTest):
    LONG = 24

    def words(self, *words, task="run"):
        return super().words(f"train.iterations={self.LONG}", *words, task=task)

    def trainers(self):
        """The trainers of this test's runs that live, by /proc."""
        found = []
        for path in os.listdir("/proc"):
            if path.isdigit():
                try:
                    with open(f"/proc/{path}/cmdline", "rb") as file:
                        line = file.read()
                except OSError:
                    continue
                if b"trireme-pretrain\0" in line and bytes(self.folder / "out") in line:
                    found.append(int(path))
        return found

    def trained(self):
        """Iterations of all runs."""
        return sum(len(self.events(self.run_folder(name), "train")) for name in NAMES)

    def check_trainers_end(self):
        deadline = time.monotonic() + PATIENCE
        while self.trainers() and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertEqual(self.trainers(), [])

    def wait_for_both(self, sweep, more_than=(0, 0)):
        """Waits until the two runs that are started first have trained for more iterations; returns how many."""
        def done():
            return [len(self.events(self.run_folder(name), "train")) for name in NAMES[:2]]
        self.wait_until(lambda: all(now > before for now, before in zip(done(), more_than)), sweep)
        return done()

    def test_sigkill_at_random_moments(self):
        chance = random.Random(11)
        kills = 0
        while kills < 6:
            with Started(list(map(str, self.words()))) as sweep:
                # On a quick machine the sweep must not end before it is killed.
                end, last = time.monotonic() + chance.uniform(0.1, 2.5), self.trained() + 12
                while sweep.running() and time.monotonic() < end and self.trained() < last:
                    time.sleep(0.01)
                if not sweep.running():
                    break
                # The sweep alone: its children are in groups of their own.
                os.kill(sweep.process.pid, signal.SIGKILL)
                kills += 1
        self.assertGreater(kills, 0)
        self.assertTrue(self.sweep().out.endswith("4 runs: 4 finished\n"))
        for name in NAMES:
            self.assertEqual(len(self.losses(self.run_folder(name))), self.LONG, name)
            # Ranks of a killed mpirun live on for a moment: they may end a run that is then begun
            # again, finds nothing to do, and says so, too.
            stops = self.events(self.run_folder(name), "stop")
            self.assertIn(0, [stop["exit_code"] for stop in stops], name)
        for name in NAMES[:2]:
            reference = self.by_hand_long(name)
            self.assertEqual(self.losses(self.run_folder(name)), reference, name)
        self.check_trainers_end()

    def by_hand_long(self, name):
        peak = name.rsplit("=", 1)[1]
        result = run("trireme-pretrain", self.deck, "sweep=", f"train.iterations={self.LONG}",
                     f"schedule.peak={peak}", f"run.output={self.folder / 'hand' / name}")
        self.assertEqual(result.code, FINISHED, result)
        return self.losses(f"hand/{name}")

    def test_children_end_with_the_sweep(self):
        with Started(list(map(str, self.words("train.iterations=100000")))) as sweep:
            self.wait_for_both(sweep)
            os.kill(sweep.process.pid, signal.SIGKILL)
            self.check_trainers_end()

    def test_first_signal_saves(self):
        done = (0, 0)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            with Started(list(map(str, self.words("train.iterations=100000")))) as sweep:
                done = self.wait_for_both(sweep, more_than=done)
                os.kill(sweep.process.pid, number)
                result = sweep.finish()
            done = [len(self.events(self.run_folder(name), "train")) for name in NAMES[:2]]
            self.assertEqual(result.code, STOPPED_EARLY, result)
            self.assertIn("waiting for 2 runs to save", result.out)
            self.assertIn("2 waiting, 2 stopped", result.out.splitlines()[-1])
            self.assertEqual(self.stop_event(self.run_folder(NAMES[0]))["exit_code"], STOPPED_EARLY)
            self.assertEqual(self.trainers(), [])

    def test_two_sweeps_in_one_folder(self):
        with Started(list(map(str, self.words("train.iterations=100000")))) as sweep:
            self.wait_for_both(sweep)
            self.assertIn("another run is using the run folder", self.sweep(code=IO).err)
            self.assertIn("2 waiting, 2 running", self.sweep(task="status").out.splitlines()[-1])
            os.kill(sweep.process.pid, signal.SIGTERM)
            self.assertEqual(sweep.finish().code, STOPPED_EARLY)


# sbatch runs the tasks one after the other; with FAKE_LIMIT, a run's metrics.jsonl, it tells the job of its time limit
# (USR1) once that run has trained. squeue answers from a file.
SBATCH = """#!/bin/bash
echo "$*" >>"$FAKE/sbatch.log"
for word; do case $word in --array=*) array=${word#--array=} ;; esac; done
echo $((1000 + $(wc -l <"$FAKE/sbatch.log")))
export SLURM_ARRAY_JOB_ID=1000
for range in $(echo "${array%%%*}" | tr , ' '); do
  for task in $(seq "${range%-*}" "${range#*-}"); do
    SLURM_ARRAY_TASK_ID=$task bash "${@: -1}" >>"$FAKE/tasks.log" 2>&1 &
    job=$!
    if [ -n "${FAKE_LIMIT:-}" ]; then
      until grep -qs '"kind":"train"' "$FAKE_LIMIT"; do sleep 0.1; done
      kill -USR1 $job
    fi
    wait $job
    echo "task $task ended with $?" >>"$FAKE/tasks.log"
  done
done
"""
SQUEUE = '#!/bin/bash\ncat "$FAKE/queue" 2>/dev/null || true\n'
SCONTROL = '#!/bin/bash\necho "$*" >>"$FAKE/scontrol.log"\n'
# The launcher of the job, without Slurm.
LAUNCHER = "mpirun --oversubscribe --bind-to none -n {ranks}"


class Slurm(SweepTest):
    def setUp(self):
        super().setUp()
        self.fake = self.folder / "slurm"
        self.fake.mkdir()
        for name, text in (("sbatch", SBATCH), ("squeue", SQUEUE), ("scontrol", SCONTROL)):
            (self.fake / name).write_text(text)
            (self.fake / name).chmod(0o755)
        self.path = os.environ["PATH"]
        os.environ.update(PATH=f"{self.fake}:{self.path}", FAKE=str(self.fake))

    def tearDown(self):
        os.environ["PATH"] = self.path
        os.environ.pop("FAKE_LIMIT", None)

    def log(self, name):
        path = self.fake / name
        return path.read_text() if path.exists() else ""

    def test_arrays(self):
        result = self.sweep("--submit", "--launcher", LAUNCHER, "--sbatch", "--time=10 --comment='a b'")
        self.assertIn("4 runs: 4 finished", result.out)
        script = self.folder / "out/sweep/job.sbatch"
        self.assertEqual(
            self.log("sbatch.log"),
            f"--parsable --array=1-2%2 --ntasks=1 --time=10 --comment=a b {script}\n"
            f"--parsable --array=3-4%2 --ntasks=2 --time=10 --comment=a b {script}\n")
        self.assertEqual(self.log("tasks.log"), "".join(f"task {i} ended with 0\n" for i in (1, 2, 3, 4)))
        self.assert_all_trained()
        self.assert_right()
        self.assertEqual(self.sweep("--submit", "--launcher", LAUNCHER).out, "4 runs: 4 finished\n")
        self.assertEqual(self.log("sbatch.log").count("\n"), 2, "finished runs were submitted again")
        shellcheck = shutil.which("shellcheck")
        if shellcheck:
            subprocess.run([shellcheck, script], check=True)
        else:
            print("\n  shellcheck is not installed: the job script was not checked", end=" ")

    def test_what_is_queued_is_left_alone(self):
        (self.fake / "queue").write_text("")
        self.write_deck("\nsweep: {run.seed: 1..3}\n")
        self.sweep("--submit", "--launcher", LAUNCHER, "sweep.run.seed=1..1", "train.iterations=3")
        shutil.rmtree(self.folder / "out" / "seed=1")
        (self.fake / "sbatch.log").unlink()
        self.sweep("--submit", "--launcher", LAUNCHER, "sweep.run.seed=1..1", "train.iterations=3")
        shutil.rmtree(self.folder / "out" / "seed=1")
        (self.fake / "queue").write_text("1 PD\n")
        result = self.sweep("--submit", "--launcher", LAUNCHER, "sweep.run.seed=1..1", "train.iterations=3")
        self.assertEqual(result.out, "1 run: 1 queued\n")
        self.assertEqual(self.log("sbatch.log").count("\n"), 1)
        result = self.sweep("--submit", "--launcher", LAUNCHER, "train.iterations=4", code=DECK)
        self.assertIn("1 of its runs are in the queue; 'scancel --name=lr-", result.err)

    def test_time_limit_saves_and_requeues(self):
        self.write_deck("\nsweep: {run.seed: [7]}\n")
        os.environ["FAKE_LIMIT"] = str(self.folder / "out/seed=7/metrics.jsonl")
        self.sweep("--submit", "train.iterations=100000", "--launcher", LAUNCHER)
        self.assertEqual(self.log("tasks.log"), "task 1 ended with 75\n")
        self.assertEqual(self.log("scontrol.log"), "requeue 1000_1\n")
        self.assertEqual(self.stop_event("out/seed=7")["exit_code"], STOPPED_EARLY)
        self.assertEqual((self.folder / "out/sweep/seed=7.exit").read_text(), "75\n")

    def test_printed_job(self):
        printed = self.sweep("--submit", "--print").out
        self.assertFalse((self.folder / "out").exists())
        self.assertIn("\n#SBATCH --requeue\n", printed)
        for tensor in (1, 2):
            self.assertIn(f"tensor={tensor},peak=1e-3 srun --mpi=pmix --kill-on-bad-exit=0 --wait=30 "
                          f"-n {tensor} ", printed)
        self.assertTrue(printed.splitlines()[-1].startswith("sbatch --parsable --array=3-4%2 --ntasks=2 "))

    def test_words_that_yaml_would_read_otherwise(self):
        words = ["--comment=run # 3", "--time=1:00:00", "--wckey=a: b"]
        printed = self.sweep("--submit", "--print", "--sbatch", shlex.join(words),
                             "--launcher", "'/opt/my mpi/mpirun' -n {ranks}").out
        command = shlex.split(printed.splitlines()[-1])
        self.assertEqual(command[4:-1], words)
        self.assertIn("tensor=2,peak=1e-3 '/opt/my mpi/mpirun' -n 2 ", printed)


if __name__ == "__main__":
    unittest.main(verbosity=2)
