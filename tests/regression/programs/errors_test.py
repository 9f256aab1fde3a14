"""What is wrong is said once, with the right exit code, before anything is started; and what the
programs answer without a launcher."""

import os
import re
import shutil
import subprocess
import unittest
import unittest.mock
from pathlib import Path

from runs import (DATA, DECK, FAILED, FINISHED, HERE, IO, USAGE, RunTest, Started, command_line,
                  dataset, run)


def version():
    """The version, which only the project's CMakeLists.txt says."""
    return re.search(r"VERSION ([\d.]+) LANGUAGES",
                     (HERE.parents[1] / "CMakeLists.txt").read_text())[1]


# Decks that are no YAML, or not what they look like, and what the message has to name.
BROKEN = [
    (b"", "broken.yaml: an empty deck"),
    ("model: {}\n".encode("utf-16"), "broken.yaml:1:1: UTF-16; convert it: iconv"),
    (b"\x7fELF\0\1", "broken.yaml:1:1: control character 0x7f: a deck is a text"),
    (b"caf\xe9: 1\n", "broken.yaml:1:4: byte 0xe9 is not UTF-8"),
    (b"model:\r  layers: 2\r", "its lines end with CR alone; convert it"),
    (b"model:\n\tlayers: 2\n", "line 2 is indented with a tab; use spaces"),
    ("model:\n  layers: 2\n\u00a0 heads: 2\n".encode(), "unknown key '\u00a0 heads' — it has a no-break space; indent with spaces"),
    (b"model: {layers: 2\n", "'{' is not closed by '}'"),
    (b"model:\n  layers: 2\n   heads: 2\n", "is this line indented as its neighbours are"),
    (b"model:\n  layers:2\n  heads: 2\n", "line 2 needs a space after 'layers:'"),
    ("model\uff1a {layers: 2}\n".encode(), "write the ASCII colon ':' and a space"),
    (b"model.layers = 2: 0\n", "in a deck it is KEY: VALUE, inside the key's section"),
    (b"log.every: 1\n", "write 'log.every' as 'every' inside the section 'log:'"),
    (b"- model\n", "broken.yaml:1:1: a deck is made of sections such as 'model:', found a list"),
    (b"model: &a {layers: 2}\nx: *a\n", "an anchor ('&name') has no place in a deck; leave it out"),
    (b"data: {train: *.bin}\n", "has no place in a deck; write the value out, or quote the text"),
    (b"model: {layers: 010}\n", "a number does not start with 0 (YAML would read it as octal)"),
    (b"model: {layers: .nan}\n", "model.layers = .nan: expected a whole number"),
    (b"model: {layers: 99999999999999999999}\n", "model.layers = 99999999999999999999: too large for a 64-bit number"),
    (b"model: {layers: 2}\nmodel: {heads: 2}\n", "broken.yaml:2:1: repeated key 'model' (first in line 1)"),
    (b"model: " + b"[" * 10000, "nested deeper than 64 levels"),
]


class Errors(RunTest):
    def test_deck_errors_are_said_once_and_together(self):
        result = self.fails(DECK, "unknown key 'model.layrs'", "model.layrs=3",
                            "parallel.tensor=3", ranks=2)
        self.assertEqual(result.err.count("parallel.tensor = 3 does not divide model.heads = 4"), 1)
        self.assertEqual(result.err.count("2 errors; nothing was started."), 1)

    def test_broken_decks_end_in_a_message(self):
        deck = self.folder / "broken.yaml"
        for content, text in BROKEN:
            with self.subTest(text):
                deck.write_bytes(content)
                result = run("trireme-pretrain", deck, "--check")
                self.assertEqual(result.code, DECK, result)
                self.assertIn(text, result.err, result)

    def test_layout_for_another_number_of_ranks(self):
        self.fails(DECK, "tensor * pipeline * data = 1 * 1 * 4 = 4, but 2 ranks were started",
                   "parallel.data=4", ranks=2)
        self.fails(DECK, "tensor * pipeline = 2 * 2 = 4 does not divide the 2 ranks",
                   "parallel.tensor=2", "parallel.pipeline=2", ranks=2)
        self.fails(DECK, "batch.global = 8 is not a multiple of batch.micro * parallel.data",
                   ranks=3)
        self.fails(DECK, "batch.global = 7 makes 7 micro-batches on each data rank",
                   "batch.global=7", "parallel.pipeline=2", "parallel.schedule=interleaved",
                   "parallel.interleave=2", ranks=2)

    def test_missing_files(self):
        missing = self.folder / "missing"
        self.fails(IO, "data.train, the prefix of a dataset that trireme-preprocess writes: cannot open "
                   f"'{missing}.idx': No such file", f"data.train={missing}", ranks=2)
        deck = run("trireme-pretrain", f"{missing}.yaml", ranks=2)
        self.assertEqual(deck.code, IO, deck)
        self.assertEqual(deck.err.count(f"cannot open '{missing}.yaml': No such file"), 1, deck)

    def test_damaged_dataset(self):
        damaged = self.folder / "damaged"
        for ending in (".bin", ".idx"):
            shutil.copy(f"{dataset()}{ending}", f"{damaged}{ending}")
        with open(f"{damaged}.bin", "r+b") as file:
            file.truncate(100)
        self.fails(DATA, f"{damaged}.bin", f"data.train={damaged}", ranks=2)

    def test_split_too_small(self):
        text = "the valid part of"
        result = self.fails(DECK, text, "data.split=999999,1,0", "evaluate.at_end=true", ranks=2)
        self.assertIn("is too small for one sample of 33 tokens", result.err)
        check = self.pretrain("run", "data.split=999999,1,0", "evaluate.at_end=true", "--check",
                              code=DECK)
        self.assertIn(text, check.err)

    def test_nothing_to_train_on(self):
        for ranks in (1, 2):
            self.fails(DECK, "the train part of", "data.split=0,1,0", ranks=ranks)
        self.fails(DECK, "the train part of", "data.split=0,1,0", "--check")

    def test_what_a_deck_names_and_is_not_there(self):
        for words in ([], ["--check"]):
            self.fails(DECK, "data.index_files: 'x' names no part", "data.index_files=x", *words)
            self.fails(IO, "there is no checkpoint 'missing'", "checkpoint.load=missing", *words)

    def test_a_checkpoint_of_another_run(self):
        self.pretrain("first", "train.iterations=1")
        load = f"checkpoint.load={self.folder / 'first'}"
        for words in ([], ["--check"]):
            self.fails(DECK, "model.sequence = 16, but the checkpoint was written with 32", load,
                       "model.sequence=16", *words)
        # A run folder with checkpoints resumes from these.
        self.pretrain("first", "checkpoint.load=missing", "--check")

    def test_what_a_check_says_of_the_restart(self):
        self.pretrain("first", "train.iterations=1", "checkpoint.every=1")
        checkpoint = self.folder / "first/checkpoints/step-00000001.h5"
        resumed = self.pretrain("first", "train.iterations=2", "parallel.zero=0", "--check")
        self.assertIn(f"restart    from {checkpoint}, iteration 1\n", resumed.out)
        self.assertIn("restart    changed: parallel.zero: 1 in the checkpoint, 0 now", resumed.out)
        changed = self.pretrain("first", "model.sequence=16", "--check", code=DECK)
        self.assertIn("model.sequence = 16, but the checkpoint was written with 32", changed.err)
        self.pretrain("first", "model.sequence=16", "--check", "--restart", "never")
        self.assertTrue(checkpoint.exists(), "a check moves nothing")
        self.fails(DECK, "model.sequence = 16, but the checkpoint was written with 32", "--check",
                   "--restart", checkpoint, "model.sequence=16")
        self.fails(IO, "there is no checkpoint 'lost/run'", "--check", "--restart", "lost/run")
        self.fails(USAGE, "neither latest, never nor a path; did you mean 'never'?", "--check",
                   "--restart", "nevr")

    def test_what_a_check_says_of_other_options(self):
        self.fails(IO, "cannot open 'lost.yaml'", "--check", "--cluster", "lost.yaml")
        cluster = HERE.parents[1] / "inputs/clusters/h200x4.yaml"
        for question in "--check", "--plan":
            expected = self.pretrain("run", question, "--cluster", cluster, "run.device=cuda",
                                     "model.vocab=257")
            self.assertRegex(expected.out, r"(?m)^expected +")
        self.fails(USAGE, "--max-restarts belongs to --supervise", "--max-restarts", "3", "--check")
        checked = run("trireme-evaluate", *self.deck_words("run"), "--check", "--checkpoint", "lost")
        self.assertEqual(checked.code, IO, checked)
        self.assertIn("there is no checkpoint 'lost'", checked.err)

    def test_what_a_check_says_of_memory(self):
        words = ["--check", "--ranks", "2", "parallel.tensor=2", "--memory"]
        fits = self.pretrain("run", *words, "16GiB")
        self.assertRegex(fits.out, r"memory     fits: 2 ranks need .* of the 16\.0 GiB that a host has")
        self.fails(DECK, "--check: does not fit: 2 ranks need", *words, "20MiB")

    def test_more_samples_than_an_index_holds(self):
        for override in ("train.iterations=1e12", "train.skip=[1-1000000000000]"):
            self.fails(DECK, "take fewer samples", override, "evaluate.every=1e12", ranks=2)
            self.fails(DECK, "take fewer samples", override, "evaluate.every=1e12", "--check")

    def test_command_lines(self):
        for ranks in (1, 2):
            self.fails(USAGE, "unrecognised option '--frobnicate'", "--frobnicate", ranks=ranks)
            self.fails(USAGE, "unrecognised option '--chek'; did you mean '--check'?", "--chek",
                       ranks=ranks)
            self.fails(USAGE, "--time-limit soon: expected a time, such as 90min",
                       "--time-limit", "soon", ranks=ranks)
        nothing = run("trireme-pretrain", ranks=2)
        self.assertEqual(nothing.code, USAGE, nothing)
        self.assertEqual(nothing.err.count("no deck is given"), 1, nothing)
        self.fails(USAGE, "a launcher starts ranks: mpirun -n 2", "--ranks", "2")
        self.fails(USAGE, "--ranks -1: must be from 1", "--plan", "--ranks", "-1", ranks=2)
        self.fails(USAGE, "--output: must name a folder", "--output", "")
        for program, word, message in [
                ("report", "sumary", "expected follow, summary, plot, html, trace, export, diff or goodput; did you mean 'summary'?"),
                ("bench", "stp", "expected burn-in, comm, gemm, generate, kernels, profile, step; did you mean 'step'?"),
                ("tokenizer", "trian", "did you mean 'train'?"),
                ("convert", "flag", "did you mean 'flags'?"),
                ("preprocess", "megre", "did you mean 'merge'?")]:
            wrong = run(f"trireme-{program}", word)
            self.assertEqual(wrong.code, USAGE, wrong)
            self.assertIn(f"unknown command '{word}'", wrong.err)
            self.assertIn(message, wrong.err)
        bare = run("trireme-pretrain", "model.layers=2")
        self.assertEqual(bare.code, USAGE, bare)
        self.assertIn("the deck comes first, then 'model.layers=2'", bare.err)


def limited(limit, program, *words):
    """What `program` does under a limit that the shell sets, as batch systems do."""
    command = ["bash", "-c", f'ulimit {limit}; exec "$@"', "bash"]
    with Started([*command, *command_line(program, *words)]) as started:
        return started.finish()


class AddressSpaceLimit(RunTest):
    def test_no_room_for_the_buffers_of_gemms(self):
        # 16 threads take the 2 GiB that the rest of the program needs a part of.
        threads = {"OMP_NUM_THREADS": "16", "OPENBLAS_NUM_THREADS": "1"}
        with unittest.mock.patch.dict(os.environ, threads):
            result = limited("-v 2097152", "trireme-pretrain",
                             *self.deck_words("run", "run.device=host"))
        self.assertEqual(result.code, FAILED, result)
        self.assertRegex(result.err, r"\Atrireme-pretrain: no memory for GEMMs: OpenBLAS takes "
                         r"128 MiB of address space for each of 16 threads; raise .*\n\Z")
        self.assertEqual(result.out, "")


class FileSizeLimit(RunTest):
    """Where a file reaches the limit of its size."""

    def limited(self, text, kib, program, *words):
        """`program`, which may write `kib` KiB to a file, ends with the code of a full disk and says
        `text` once."""
        result = limited(f"-f {kib}", program, *words)
        self.assertEqual(result.code, IO, result)
        self.assertEqual(result.err.count(text), 1, result)

    def test_a_checkpoint_is_too_large(self):
        # MPI's own files have several MiB.
        self.limited("step-00000000.h5.part': File too large", 16384, "trireme-pretrain",
                     *self.deck_words("run", "model.hidden=256"))
        self.assertEqual(os.listdir(self.folder / "run" / "checkpoints"), [])

    def test_a_dataset_is_too_large(self):
        text = self.folder / "text.txt"
        text.write_bytes(b"many words\n" * 20000)
        self.limited("File too large", 100, "trireme-preprocess", "--input", text, "--output",
                     self.folder / "data", "--tokenizer", "bytes")


class NoGpu(RunTest):
    """Where no GPU is visible, or the build has no CUDA backend."""

    def setUp(self):
        super().setUp()
        hidden = unittest.mock.patch.dict(os.environ, CUDA_VISIBLE_DEVICES="")
        hidden.start()
        self.addCleanup(hidden.stop)

    def test_cuda_says_why_not(self):
        why = "this build has no CUDA backend|this machine has no NVIDIA driver"
        if os.path.exists("/proc/driver/nvidia"):
            why += "|CUDA says: |CUDA sees no "
        reason = rf"run\.device = cuda: ({why}).*\n"
        alone = self.fails(FAILED, "run.device = cuda", "run.device=cuda")
        self.assertRegex(alone.err, rf"\Atrireme-pretrain: {reason}\Z")
        ranks = self.fails(FAILED, "run.device = cuda", "run.device=cuda", "parallel.tensor=2",
                           ranks=2)
        self.assertRegex(ranks.err, rf"(?m)^trireme-pretrain: rank 0 on \S+: {reason}")

    def test_auto_takes_the_host(self):
        result = self.pretrain("run", "run.device=auto", "train.iterations=1")
        self.assertIn("host backend", result.out)


class Questions(RunTest):
    def answers(self, *words, program="trireme-pretrain"):
        result = run(program, *words)
        self.assertEqual((result.code, result.err), (FINISHED, ""), result)
        self.assertFalse((self.folder / "run").exists())
        return result.out

    def test_help_and_version(self):
        for option in ("--restart", "--time-limit", "--check", "--plan", "--print-deck"):
            self.assertIn(option, self.answers("--help"))
        deck = self.answers("--help", "deck")
        self.assertIn("model.layers", deck)
        self.assertIn("log.tensorboard.enable", deck)
        self.assertIn("schedule.peak", self.answers("--help", "deck.schedule"))
        self.assertIn("Transformer layers.", self.answers("--help", "deck.model.layers"))
        self.assertIn("--split", self.answers("--help", program="trireme-evaluate"))
        for file in ("deck.yaml", "deck.yml", "tiny.yaml"):
            self.assertIn("--set", self.answers("--help", file))
        wrong = run("trireme-pretrain", "--help", "deck.modle")
        self.assertEqual(wrong.code, USAGE, wrong)
        self.assertIn("did you mean 'model'?", wrong.err)

    def test_every_command_answers_help_and_version_alike(self):
        for program, *command in [["pretrain"], ["evaluate"], ["sweep"], ["generate"],
                                  ["preprocess"], ["tokenizer"], ["inspect"], ["convert"],
                                  ["report"], ["bench", "gemm"], ["bench", "kernels"],
                                  ["bench", "step"], ["bench", "comm"]]:
            name = f"trireme-{program}"
            with self.subTest(" ".join([name, *command])):
                text = self.answers(*command, "--help", program=name)
                self.assertEqual(self.answers(*command, "-h", program=name), text)
                self.assertIn(f"Usage: {' '.join([name, *command])} ", text.replace(
                    "mpirun -n RANKS ", ""))
                self.assertIn("  -h [ --help ] ", text)
                self.assertIn("  --version ", text)
                self.assertNotRegex(text, r"--[a-z-]+ arg\b", "a value without a name")
                self.assertNotIn("\n\n\n", text)
                self.assertLessEqual(max(map(len, text.splitlines())), 100, text)
                self.assertTrue(self.answers(*command, "--version", program=name).startswith(
                    f"{' '.join([name, *command])} {version()}\ncommit "))

    def test_version_names_what_was_built_with_what(self):
        lines = self.answers("--version").splitlines()
        self.assertEqual(lines[0], f"trireme-pretrain {version()}")
        facts = dict(re.split(r"  +", line, maxsplit=1) for line in lines[1:])
        self.assertEqual(list(facts),
                         ["commit", "compiler", "CUDA", "NCCL", "MPI", "HDF5", "BLAS"])
        for name, pattern in [("compiler", r"(GCC|Clang) \d+\."), ("CUDA", r"\d+\.\d+$|none"),
                              ("NCCL", r"\d+\.\d+\.\d+ |none"), ("MPI", r"[\w ]+ \d+\.\d+"),
                              ("HDF5", r"\d+\.\d+\.\d+$"), ("BLAS", r"OpenBLAS \d+\.\d+")]:
            self.assertRegex(facts[name], "^" + pattern)
        git = ["git", "-C", str(HERE)]
        if subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True).returncode != 0:
            self.assertEqual(facts["commit"], "unknown")
        else:
            built = facts["commit"].removesuffix("+")
            self.assertRegex(built, "^[0-9a-f]{12,}$")
            subprocess.run([*git, "cat-file", "-e", f"{built}^{{commit}}"], check=True)

    def test_one_rank_without_a_launcher_starts_no_daemon(self):
        # Open MPI's orted would run from MPI_Init() to the end.
        with self.start("run", "train.iterations=1e6") as started:
            self.wait_until(lambda: self.events("run", "train"), started)
            names = [Path(f"/proc/{child}/comm").read_text().strip() for child in started.children()]
        self.assertNotIn("orted", names)

    def test_check_and_plan(self):
        words = self.deck_words("run", "parallel.tensor=2", "parallel.pipeline=2")
        checked = self.answers(*words, "--check", "--ranks", "8")
        self.assertIn("no errors; ranks: 8, iterations: 20, vocabulary: 257", checked)
        self.assertIn("documents", checked)
        plan = self.answers(*words, "--plan", "--ranks", "8")
        self.assertIn("8 = tensor 2 x pipeline 2 x data 2, layers per stage 2-2", plan)
        self.assertIn("pipeline bubble 20.0 % (1f1b)", plan)
        plan = self.answers(*words, "--plan", "--ranks", "8", "parallel.schedule=interleaved",
                            "parallel.interleave=2")
        self.assertIn("pipeline bubble 11.1 % (interleaved)", plan)

    def test_questions_under_the_launcher_are_answered_once(self):
        for words, line in [(["--version"], "trireme-pretrain "), (["--help"], "Usage: "),
                            (self.deck_words("run", "--check"), "no errors; ")]:
            result = run("trireme-pretrain", *words, ranks=2)
            self.assertEqual(result.code, FINISHED, result)
            self.assertEqual(result.out.count(line), 1, result)

    def test_output_is_a_folder_as_it_stands(self):
        printed = self.answers(*self.deck_words("run", "--output", "a: b #1", "--print-deck"))
        self.assertIn('output: "a: b #1"\n', printed)

    def test_printed_deck_reads_back(self):
        printed = self.answers(*self.deck_words("run", "--print-deck"))
        self.assertIn("# default", printed)
        copy = self.folder / "tiny.yaml"
        copy.write_text(printed)
        self.assertEqual(self.answers(copy, "--print-deck"), printed)

    def test_stored_deck_continues_the_run(self):
        self.pretrain("stored", "train.iterations=2")
        again = run("trireme-pretrain", self.folder / "stored" / "deck.yaml", "train.iterations=3")
        self.assertEqual(again.code, FINISHED, again)
        self.assertEqual(len(self.losses("stored")), 3)


if __name__ == "__main__":
    unittest.main(verbosity=2)
