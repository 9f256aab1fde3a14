"""Blocks of the pages whose commands take minutes, several hosts or GPUs: shortened runs print the same lines but for
their numbers, and what no run here can print is at least what the sources print. Every block is compared by some test."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
import unittest

from pages import IMMEDIATE, OWN_TEXT, PAGES, PREPARED, ROOT, blocks, form_of, pattern_of, shown_commands
from runs import BIN, MPIEXEC, PATIENCE, SCRATCH, Started, command_line

# Shortened: (page, how the command begins) and the test that runs it.
SHORTENED = {
    ("README.md", "jobs/local/quickstart.sh"): "test_quickstarts",
    ("inputs/README.md", "jobs/local/quickstart-bert.sh"): "test_quickstarts",
    ("README.md", "mpirun -n 2 trireme-pretrain inputs/quickstart.yaml --output runs/demo"): "test_stop_and_resume",
    ("apps/README.md", "mpirun -n 4 trireme-pretrain inputs/quickstart.yaml --output runs/demo"): "test_stop_and_resume",
    ("apps/README.md", "mpirun -n 2 trireme-pretrain inputs/quickstart.yaml --output runs/demo"): "test_stop_and_resume",
    ("apps/README.md", "trireme-preprocess clean"): "test_corpora",
    ("apps/README.md", "trireme-preprocess dedup"): "test_corpora",
    ("inputs/README.md", "mpirun -n 2 trireme-pretrain inputs/quickstart.yaml parallel.tensor=1"): "test_fp16",
    ("inputs/README.md", "mpirun -n 2 trireme-pretrain inputs/quickstart-llama.yaml"): "test_llama",
    ("inputs/README.md", "trireme-evaluate inputs/quickstart-llama.yaml"): "test_llama",
    ("inputs/README.md", "mpirun -n 2 trireme-pretrain inputs/gpt2-bigscience-10k.yaml"): "test_ramp_up",
    ("inputs/README.md", "trireme-sweep"): "test_sweep",
}
# Several hosts, an image, another build, the whole of CI, runs that stall: the fixed parts of their lines stand in the sources.
ELSEWHERE = [("apps/README.md", "trireme-report follow runs/monitored --once"), ("apps/README.md", "mpirun -n 4 trireme-pretrain inputs/monitored.yaml"),
             ("apps/README.md", "trireme-serve --checkpoint"), ("apps/README.md", "kill %1"),
             ("apps/bench/README.md", "trireme-bench step inputs/gpt2-124m.yaml"), ("jobs/README.md", "jobs/slurm/many-nodes.sbatch"),
             ("jobs/README.md", "cat gpt2-1.5b_"),
             ("jobs/README.md", "jobs/container/build-image.sh"), ("jobs/README.md", "srun -N 2"),
             ("jobs/README.md", "mpirun -n 1 trireme-pretrain tiny.yaml : -n 1 ./other-build"), ("tests/README.md", "jobs/local/test.sh")]
# Blocks without a command, measured on GPUs as the text before them says: how they begin.
MEASURED = {"apps/README.md": (" use of 2 GPUs until iteration", "[rank 0 on node1] stacks at"), "apps/bench/README.md": "== verdict on vm, after",
            "inputs/README.md": "run                     state "}
# What differs from run to run in such lines.
VARIABLE = re.compile(r"\S*\d\S*|'[^']*'|\.\.\.|\S*/\S+|\b(?:vm|world|main|bookworm|threads?|GPUs?|GiB|MiB|files|yes|no|set|in|iteration|memory|tokens|MPI_\w+|test_\w+)\b|==|--+|[():;,|]| {2,}")
# Input that a page shows.
INPUT = [("apps/README.md", "cat own.jsonl")]
SHORT = ["run.device=host", "batch.global=8", "evaluate.iterations=1", "log.every=1"]
MPIRUN = f"{MPIEXEC} --oversubscribe --bind-to none "


def block_of(page, begin):
    """The lines that `page` shows after the command `begin`, or the only one that begins so."""
    shown = [(command, lines) for command, lines in shown_commands(PAGES[page]) if command.startswith(begin) and lines]
    found = [lines for command, lines in shown if command == begin] or [lines for _, lines in shown]
    if len(found) != 1:
        raise AssertionError(f"{page}: {len(found)} commands begin with {begin}")
    return found[0]


def plain(text):
    """The form of a line whose times and sizes may have other units."""
    text = re.sub(r"\b\d+(\.\d+)?(d|h|m|s)(\d+(m|s))*\b", "TIME", text)
    text = re.sub(r"\b\d+(\.\d+)? (bytes|[KMGT]iB)\b", "SIZE", text)
    return form_of(text.replace(socket.gethostname(), "vm")).rstrip()


def setUpModule():
    shutil.rmtree(SCRATCH, ignore_errors=True)
    SCRATCH.mkdir(parents=True)
    os.chdir(SCRATCH)
    # A tree in which the quickstarts' scripts find short decks, a text, and programs that are built.
    shutil.copytree(ROOT / "inputs", "inputs")
    for name in ("jobs", "tests"):
        os.symlink(ROOT / name, name)
    shutil.copytree(ROOT / "jobs/local", "tree/jobs/local")
    shutil.copytree(ROOT / "inputs", "tree/inputs")
    for deck, iterations in ("quickstart", 800), ("quickstart-bert", 850):
        path = SCRATCH / f"tree/inputs/{deck}.yaml"
        text = path.read_text()
        short = re.sub(rf"\b(iterations:) {iterations}\b", r"\1 4", text)
        assert short != text, f"{deck} has no {iterations} iterations"
        path.write_text(re.sub(r"\bevery: \d+( +# iterations between validations)", r"every: 4\1", short))
    for path in "tree/cmake/dependencies.sh", "tree/fakes/cmake":
        (SCRATCH / path).parent.mkdir()
        (SCRATCH / path).write_text("#!/bin/sh\n")
        (SCRATCH / path).chmod(0o755)
    os.makedirs("tree/build/release")
    (SCRATCH / "tree/build/release/build.ninja").touch()
    os.symlink(BIN, "tree/build/release/bin")
    os.makedirs("tree/data/quickstart")
    # As many lines as the Bible has chapters, with sentences of two parts.
    words = re.findall(r"[A-Za-z]+", "".join(PAGES.values()))
    sentences = [" ".join(words[at:at + 6]) + "; " + " ".join(words[at + 6:at + 12]) + "." for at in range(0, len(words) - 12, 12)]
    text = "".join(" ".join(sentences[at:at + 4]) + "\n" for at in range(0, len(sentences), 4))
    (SCRATCH / "tree/data/quickstart/corpus.txt").write_text(text)


class LongBlocks(unittest.TestCase):
    maxDiff = None

    def shell(self, command, folder=SCRATCH, code=0):
        environment = dict(os.environ, PATH=f"{SCRATCH}/tree/fakes:{BIN}:{os.environ['PATH']}")
        result = subprocess.run(["bash", "-c", command], env=environment, text=True, timeout=2 * PATIENCE, cwd=folder,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(result.returncode, code, f"{command}\n{result.stdout}")
        return result.stdout

    def compare(self, page, begin, printed):
        """The output has the lines of the page's block, in their form."""
        shown = [line if line == "..." else plain(line) for line in block_of(page, begin)]
        found = "".join(plain(line) + "\n" for line in printed.splitlines())
        if not re.fullmatch(pattern_of(shown), found):
            self.assertEqual("\n".join(shown) + "\n", found, f"{page}: {begin}")

    def data(self):
        """The quickstart's data, which the decks name."""
        if not (SCRATCH / "data").exists():
            self.quickstart()
            os.symlink("tree/data", "data")
        return SCRATCH / "data/quickstart"

    def quickstart(self):
        if not hasattr(type(self), "printed"):
            type(self).printed = self.shell("jobs/local/quickstart.sh", SCRATCH / "tree")
        return self.printed

    def test_quickstarts(self):
        prompt = re.search(r'prompt="(And .*)"', (ROOT / "jobs/local/quickstart.sh").read_text())[1]
        sample = block_of("README.md", "jobs/local/quickstart.sh")[-1]
        self.assertTrue(sample.startswith(prompt), sample)
        printed = self.quickstart()
        self.assertIn(f"\n{prompt}", printed)
        validation = next(line for line in printed.splitlines() if line.startswith(" validation loss at iteration"))
        self.compare("README.md", "jobs/local/quickstart.sh", f"\n{validation}\n\n{sample}\n")
        bert = self.shell("jobs/local/quickstart-bert.sh", SCRATCH / "tree")
        self.compare("inputs/README.md", "jobs/local/quickstart-bert.sh", bert)

    def test_stop_and_resume(self):
        self.data()
        words = ["inputs/quickstart.yaml", "--output", "runs/demo"]
        with Started(command_line("trireme-pretrain", *words, *SHORT, ranks=4)) as started:
            deadline, metrics = time.monotonic() + PATIENCE, SCRATCH / "runs/demo/metrics.jsonl"
            while not metrics.exists() or '"kind":"train"' not in metrics.read_text():
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.05)
            started.process.send_signal(signal.SIGUSR1)
            stopped = started.finish()
        self.assertEqual(stopped.code, 75, stopped)
        printed = re.sub(r"^(continue +mpirun ).*(-n 4).*(trireme-pretrain)", r"\1\2 \3", stopped.out, flags=re.M)
        self.compare("apps/README.md", "mpirun -n 4 trireme-pretrain inputs/quickstart.yaml", printed.replace(" " + " ".join(SHORT), ""))
        done = int(re.search(r"stopped after iteration (\d+)", stopped.out)[1])
        resumed = self.shell(f"{MPIRUN} -n 2 trireme-pretrain {' '.join(words)} parallel.tensor=1 parallel.pipeline=1 "
                             f"{' '.join(SHORT)} train.iterations={done + 1}")
        for page in "README.md", "apps/README.md":
            resuming = "mpirun -n 2 trireme-pretrain inputs/quickstart.yaml --output runs/demo"
            # The page stops reading at a training line.
            line = next(line for line in resumed.splitlines() if line.startswith(" iteration"))
            self.compare(page, resuming, resumed[:resumed.index(line)] + line + "\n")

    def test_corpora(self):
        words = "".join(PAGES.values()).split()
        texts = [" ".join(words[at:at + 300]) for at in range(0, len(words) - 300, 300)]
        near = texts[0].replace("the", "this", 1)
        with open("pages.jsonl", "w", encoding="utf-8") as file:
            for text in [*texts, texts[1], near, "short", texts[2] + " â€œquotedâ€"]:
                file.write(json.dumps({"text": text}) + "\n")
        for command in "clean", "dedup":
            shown = next(line for line, _ in shown_commands(PAGES["apps/README.md"]) if line.startswith(f"trireme-preprocess {command}"))
            printed = self.shell(shown)
            lines = block_of("apps/README.md", f"trireme-preprocess {command}")
            for line in lines[:-1]:  # other texts may be dropped for further reasons
                self.assertIn(plain(line), [plain(each) for each in printed.splitlines()], printed)

    def test_fp16(self):
        self.data()
        begin = "mpirun -n 2 trireme-pretrain inputs/quickstart.yaml parallel.tensor=1 parallel.pipeline=2"
        printed = self.shell(f"{MPIRUN} -n 2 trireme-pretrain inputs/quickstart.yaml parallel.tensor=1 parallel.pipeline=2 precision.compute=fp16 "
                             "run.output=runs/fp16 run.device=host train.iterations=40 log.every=20 batch.global=4")
        lines = [line for line in printed.splitlines() if line.startswith(" iteration")]
        self.assertRegex(lines[0], r"number of skipped iterations: +\d\d")
        self.compare("inputs/README.md", begin, "\n".join(["", *lines]))

    def test_llama(self):
        self.data()
        deck = "inputs/quickstart-llama.yaml run.device=host"
        printed = self.shell(f"{MPIRUN} -n 2 trireme-pretrain {deck} train.iterations=4 batch.global=16 evaluate.every=4 evaluate.iterations=1")
        self.compare("inputs/README.md", "mpirun -n 2 trireme-pretrain inputs/quickstart-llama.yaml", printed)
        for words in "--split valid", "--task ngram":
            self.compare("inputs/README.md", f"trireme-evaluate inputs/quickstart-llama.yaml {words}",
                         self.shell(f"trireme-evaluate {deck} {words}"))

    def test_ramp_up(self):
        (SCRATCH / "ramp.txt").write_text("".join(PAGES.values()))
        self.shell(f"trireme-preprocess --input ramp.txt --output ramp --tokenizer gpt2 --vocab tests/data/gpt2/vocab.json "
                   "--merges tests/data/gpt2/merges.txt --append-eod")
        begin = "mpirun -n 2 trireme-pretrain inputs/gpt2-bigscience-10k.yaml"
        deck = "inputs/gpt2-bigscience-10k.yaml run.device=host data.train=ramp_text_document data.split=90,5,5"
        printed = self.shell(f"{MPIRUN} -n 2 trireme-pretrain {deck} data.tokenizer.vocab=tests/data/gpt2/vocab.json "
                             "data.tokenizer.merges=tests/data/gpt2/merges.txt model.layers=1 model.hidden=16 model.heads=2 "
                             "'train.exit_interval=4 iterations' log.every=4 evaluate.iterations=1")
        self.compare("inputs/README.md", begin, printed[:printed.index("(exit code 0)")] + "(exit code 0)\n")

    def test_sweep(self):
        self.data()
        words = "inputs/sweeps/learning-rate.yaml run.device=host train.iterations=4 log.every=2 evaluate.iterations=1"
        printed = [plain(line) for line in self.shell(f"trireme-sweep {words}").splitlines()]
        for line in block_of("inputs/README.md", "trireme-sweep inputs/sweeps"):  # in an order that the machine decides
            if line != "...":
                self.assertIn(plain(line), printed)
        self.compare("inputs/README.md", "trireme-sweep table inputs/sweeps", self.shell(f"trireme-sweep table {words}"))
        published = self.shell("trireme-sweep table inputs/sweeps/dlperf.yaml --beside inputs/sweeps/dlperf-published.csv")
        extract = next(each for each in blocks(PAGES["inputs/README.md"]) if each.startswith(MEASURED["inputs/README.md"]))
        for name in re.split(" {2,}", extract.splitlines()[0].strip()):
            self.assertIn(name, re.split(" {2,}", published.splitlines()[0].strip()))
        for row in extract.splitlines()[1:]:
            self.assertTrue(row == "..." or f"\n{row.split()[0]} " in published, row)

    def test_lines_of_other_machines_stand_in_the_sources(self):
        sources = ""
        for folder in "src", "apps", "jobs", ".ci":
            for path in (ROOT / folder).rglob("*"):
                if path.is_file() and path.name != "README.md" and path.suffix not in (".svg", ".js"):
                    sources += path.read_text(errors="replace")
        # Literals of C++ continue on the next line.
        sources = re.sub(r'"\s*\n\s*(?:R?)"', "", sources)
        shown = [(page, line) for page, begin in ELSEWHERE for command, lines in shown_commands(PAGES[page])
                 if command.startswith(begin) for line in lines]
        shown += [(page, line) for page, begin in MEASURED.items() if page != "inputs/README.md"
                  for each in blocks(PAGES[page]) if each.startswith(begin) for line in each.splitlines()]
        compared = 0
        for page, line in shown:
            if line.startswith(("srun: error", "Submitted batch job")):  # Slurm's own
                continue
            for part in VARIABLE.split(line):
                part = part.strip()
                if len(part) >= 10:
                    compared += 1
                    self.assertTrue(part in sources, f"{page}: '{part}' of '{line}' is not in the sources")
        self.assertGreater(compared, 25, "the lines are not found any more")

    def test_every_block_is_compared(self):
        begins = [*SHORTENED, *ELSEWHERE, *INPUT]
        for test in SHORTENED.values():
            self.assertTrue(hasattr(self, test), test)
        for page, text in PAGES.items():
            for command, lines in shown_commands(text):
                compared = (IMMEDIATE.match(command) or OWN_TEXT.search(command) or PREPARED.match(command) or lines in ([], ["..."])
                            or any(page == each and command.startswith(begin) for each, begin in begins))
                self.assertTrue(compared, f"{page}: no test compares the output of '{command}'")
            for block in blocks(text):
                compared = block.startswith("$ ") or page in MEASURED and block.startswith(MEASURED[page])
                self.assertTrue(compared, f"{page}: no test compares the block\n{block}")


if __name__ == "__main__":
    unittest.main(verbosity=2)
