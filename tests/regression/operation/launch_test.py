"""Ranks that were not started alike: found at the start, said once, with the right exit code."""

import os
import shlex
import shutil
import subprocess
import unittest

from runs import BIN, DECK, FAILED, FINISHED, HERE, IO, MPIEXEC, USAGE, RunTest, Started, command_line


def build_id(path):
    """The place of the build id in a program's file."""
    notes = subprocess.run(["readelf", "-n", path], stdout=subprocess.PIPE, text=True, check=True)
    text = notes.stdout.split("Build ID:")[1].split()[0]
    return path.read_bytes().index(bytes.fromhex(text))


def change_build_id(path):
    """Flips the bits of the first byte of the build id in a program's file."""
    place = build_id(path)
    with open(path, "r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 255]))


class Launch(RunTest):
    def test_a_program_without_a_launcher_starts_no_daemon(self):
        with self.start("run", "train.iterations=100000") as started:
            self.wait_until(lambda: self.events("run", "train"), started)
            self.assertEqual(started.children(), [])

    def test_a_program_without_a_launcher_makes_no_session_folder(self):
        """Where Open MPI would make it there can be none."""
        done = subprocess.run([*map(str, self.train_words("run", "train.iterations=2"))], capture_output=True, text=True,
                              env={**os.environ, "TMPDIR": "/dev/null/none"}, check=False)
        self.assertEqual(done.returncode, FINISHED, done.stderr)

    def test_a_launcher_has_an_exit_code_where_the_parent_ignores_children(self):
        """As daemons do: ignored signals are inherited."""
        ignoring = ["sh", "-c", 'trap "" CHLD; exec "$@"', "sh"]
        with Started([*ignoring, *self.train_words("run", "--supervise=false", "--max-restarts", "0")]) as started:
            result = started.finish()
        self.assertEqual(result.code, FAILED, result)

    def together(self, *words):
        """Two ranks, each with its own command: lists of words."""
        contexts = []
        for command in words:
            contexts += [*([":"] if contexts else []), "-n", "1", *map(str, command)]
        launcher = [MPIEXEC, "--oversubscribe", "--bind-to", "none"]
        with Started([*launcher, *contexts]) as started:
            return started.finish()

    def train_words(self, name="run", *words):
        return [BIN / "trireme-pretrain", *self.deck_words(name, *words)]

    def test_a_supervised_run_that_has_not_saved_begins_with_the_same_checkpoint_again(self):
        self.pretrain("base", "train.iterations=5")
        launcher = self.folder / "launcher"
        launcher.write_text(f"""#!/bin/bash
mkdir {self.folder}/started 2>/dev/null || exec "$@"
"$@" &
until grep -q '"kind":"train"' {self.folder}/run/metrics.jsonl; do sleep 0.02; done
kill -9 $!
exit 137
""")
        launcher.chmod(0o755)
        moved = self.folder / "base #1: moved"
        (self.folder / "base").rename(moved)
        begin = self.latest(moved.name)
        words = self.train_words("run", "train.iterations=200", "checkpoint.every=1000", "--restart", begin,
                                 f"--supervise={launcher}", "--max-restarts=1")
        with Started(list(map(str, words))) as started:
            result = started.finish()
        self.assertEqual(result.code, FINISHED, result)
        self.assertIn("starting it again", result.err)
        self.assertEqual(result.out.count(f"restart    from {begin}, iteration 5\n"), 2, result)
        self.assertEqual([event["iteration"] for event in self.events("run", "train")], [*range(6, 201)])

    def refused(self, result, code, *parts):
        self.assertEqual(result.code, code, result)
        self.assertEqual(result.err.count("rank 1 on "), 1, result)
        for part in parts:
            self.assertIn(part, result.err)

    def install(self, name):
        """Copies trireme-pretrain, and the libraries that it finds in ../lib, into a new folder: the
        program comes first. Ranks of an earlier launch may still run what older folders hold."""
        libraries = sorted((BIN.parent / "lib").glob("libtrireme_*.so"))
        copies = []
        for original in [BIN / "trireme-pretrain", *libraries]:
            copy = self.folder / name / original.parent.name / original.name
            copy.parent.mkdir(parents=True, exist_ok=True)
            copies.append(shutil.copy(original, copy))
        return copies

    def test_another_binary(self):
        for number in range(len(self.install("original"))):
            copies = self.install(f"changed-{number}")
            change_build_id(copies[number])
            result = self.together(self.train_words(), [copies[0], *self.deck_words("run")])
            self.refused(result, FAILED, f"'{copies[0]}' is build ", "but rank 0 on ",
                         "install one build")
            self.assertFalse((self.folder / "run").exists())
        # A copy elsewhere is the same build.
        copies = self.install("copy")
        result = self.together(self.train_words("run", "train.iterations=1"),
                               [copies[0], *self.deck_words("run", "train.iterations=1")])
        self.assertEqual(result.code, FINISHED, result)

    def test_another_deck(self):
        other = self.folder / "tiny.yaml"
        other.write_text((HERE / "tiny.yaml").read_text().replace("iterations: 20", "iterations: 21"))
        mine = self.deck_words("run")
        result = self.together(self.train_words(), [BIN / "trireme-pretrain", other, *mine[1:]])
        self.refused(result, DECK, f"its deck '{other}' is not rank 0's",
                     "'train: {iterations: 21}' there and 'train: {iterations: 20}' on rank 0")
        result = self.together(self.train_words(), self.train_words("run", "batch.global=16"))
        self.refused(result, DECK, "'batch.global=16' there and missing on rank 0")
        self.assertFalse((self.folder / "run").exists())

    def test_deck_from_a_pipe(self):
        """Which gives its text once."""
        deck, *words = self.deck_words("run", "train.iterations=1")
        program, deck, words = map(shlex.join, ([str(BIN / "trireme-pretrain")], [str(deck)],
                                                map(str, words)))
        line = f"{program} <(cat {deck}) {words}"
        with Started(["bash", "-c", line]) as started:
            result = started.finish()
        self.assertEqual(result.code, FINISHED, result)
        with Started(["bash", "-c", f"{line} --print-job=slurm"]) as started:
            result = started.finish()
        self.assertEqual(result.code, USAGE, result)
        self.assertIn("needs a deck in a file", result.err)

    def test_run_folder_of_another_host(self):
        """Two folders of one name, such as those of two hosts' own disks."""
        words = self.train_words()
        relative = [f"run.output=run" if "run.output=" in str(word) else word for word in words]
        folders = [self.folder / "one", self.folder / "two"]
        for folder in folders:
            folder.mkdir()
        result = self.together(*[["-wdir", folder, *relative] for folder in folders])
        self.refused(result, IO, f"does not see the run folder '{folders[1]}/run'",
                     "file system that all hosts share")
        self.assertFalse((folders[1] / "run").exists())

    def test_a_rank_that_leaves_before_the_others_run(self):
        train, check = self.train_words(), self.train_words("run", "--check")
        for words, rank in [([train, check], 1), ([check, train], 0)]:
            result = self.together(*words)
            self.assertEqual(result.code, USAGE, result)
            self.assertEqual(result.err.count(f"rank {rank} on "), 1, result)
            self.assertIn("only answers a question, such as --check, and rank ", result.err)
        self.assertFalse((self.folder / "run").exists())
        result = self.together(check, check)
        self.assertEqual(result.code, FINISHED, result)
        self.assertEqual(result.out.count("no errors"), 1, result)

    def test_a_wrong_option_of_one_rank(self):
        wrong = self.train_words("run", "--no-such-option")
        result = self.together(self.train_words(), wrong)
        self.refused(result, USAGE, "unrecognised option '--no-such-option'")
        self.assertFalse((self.folder / "run").exists())
        result = self.together(wrong, wrong)
        self.assertEqual(result.code, USAGE, result)
        self.assertEqual(result.err.count("unrecognised option"), 1, result)

    def test_ranks_alone(self):
        """A launcher of another kind starts processes that do not find each other."""
        for variable, part in [("SLURM_NTASKS", "srun --mpi=pmix"), ("PMI_SIZE", "another MPI"),
                               ("SLURM_STEP_NUM_TASKS", "srun --mpi=pmix")]:
            command = ["env", f"{variable}=2", *command_line("trireme-pretrain", *self.deck_words("run"))]
            with Started(command) as started:
                result = started.finish()
            self.assertEqual(result.code, FAILED, result)
            self.assertIn(part, result.err)
        self.assertFalse((self.folder / "run").exists())


if __name__ == "__main__":
    unittest.main(verbosity=2)
