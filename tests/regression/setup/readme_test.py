"""The pages (README.md of every folder, CONTRIBUTING.md, CHANGELOG.md) are true: commands that need neither ranks
nor data give the output that is shown, those on data and runs its form after a short run, the recipes' table has
today's plans, and keys, options, programs, files and links exist."""

import contextlib
import os
import re
import shutil
import socket
import subprocess
import textwrap
import unittest

from pages import IMMEDIATE, OWN_TEXT, PAGES, PREPARED, ROOT, form_of, pattern_of, shown_commands
from runs import BIN, PATIENCE, SCRATCH, Started, command_line, run

SHORT_RUN = " train.iterations=4 batch.global=4 evaluate.iterations=1 log.every=2"
FOLDER = "/home/me/trireme"  # the working directory of the pages' commands


def setUpModule():
    """A folder that looks like this repository to the commands, and takes what they write."""
    shutil.rmtree(SCRATCH, ignore_errors=True)
    SCRATCH.mkdir(parents=True)
    for name in ("inputs", "tests", "jobs"):
        (SCRATCH / name).symlink_to(ROOT / name)
    (SCRATCH / "news.jsonl").write_text('{"text": "a"}\n{"txt": "b"}\n')
    (SCRATCH / "my.txt").write_text("".join(PAGES.values()))
    (SCRATCH / "data").mkdir()
    os.chdir(SCRATCH)


def answer(command):
    """What a shell prints for `command`."""
    if OWN_TEXT.search(command):
        command = re.sub(r"(trireme-pretrain \S+)", rf"\1{SHORT_RUN}", command)
    else:
        # The quickstart's tokenizer has 2048 pieces; it is not made here.
        command = command.replace("inputs/quickstart.yaml", "inputs/quickstart.yaml model.vocab=2048")
    environment = dict(os.environ, PATH=f"{BIN}:{os.environ['PATH']}")
    result = subprocess.run(["bash", "-c", command], env=environment, text=True, timeout=PATIENCE,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return result.stdout.replace(str(SCRATCH), FOLDER)


def prepare_short_runs():
    """What the pages' commands on data and runs read, from the text of the pages and a few iterations."""
    def call(words):
        result = run(*words.split())
        if result.code != 0:
            raise AssertionError(result)

    tiny = (ROOT / "tests/regression/tiny.yaml").read_text()
    (SCRATCH / "tiny.yaml").write_text(tiny)
    (SCRATCH / "other.yaml").write_text(tiny.replace("global: 8", "global: 16"))
    (SCRATCH / "data/quickstart").mkdir()
    shutil.copy(SCRATCH / "my.txt", SCRATCH / "data/quickstart/corpus.txt")
    call("trireme-tokenizer train --input my.txt --output data/quickstart/tokenizer.model --size 2048")
    call("trireme-preprocess --input my.txt --output data/quickstart/corpus --tokenizer sentencepiece --model "
         "data/quickstart/tokenizer.model --append-eod")
    call(f"trireme-preprocess --input {ROOT}/LICENSE --format text --output data/licence --tokenizer bytes --append-eod")
    short = "trireme-pretrain tests/regression/tiny.yaml run.device=host data.train=data/licence_text_document --output runs/"
    call(short + "licence model.positions=256 train.iterations=4 checkpoint.every=2")
    call(short + "tiny train.iterations=4")
    for name, peak in ("a", "3e-3"), ("b", "1e-3"), ("monitored", "3e-3"), ("flat", "3e-3"):
        call(f"{short}{name} train.iterations=40 log.every=10 schedule.peak={peak}")
    call("trireme-pretrain inputs/quickstart.yaml run.device=host parallel.tensor=1 parallel.pipeline=1 "
         "train.iterations=2 batch.global=4 evaluate.iterations=1")
    done = SCRATCH / "runs/quickstart/checkpoints"
    (done / "step-00000002.h5").rename(done / "step-00000800.h5")
    (done / "latest").write_text("step-00000800.h5\n")


def rows(page, heading):
    """The rows of the first table of a section, as lists of cells."""
    section = page.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


class Readme(unittest.TestCase):
    longMessage = True
    maxDiff = None

    def check_commands(self, belongs, with_numbers=True):
        """Runs the commands that `belongs` matches; returns how many there are."""
        tried = 0
        for name, page in PAGES.items():
            for command, lines in shown_commands(page):
                if not belongs(command):
                    continue
                with self.subTest(page=name, command=command):
                    printed = answer(command)
                    tried += 1
                    if not re.fullmatch(pattern_of(lines, with_numbers), printed):
                        self.assertEqual("\n".join(lines) + "\n", printed)
        return tried

    def test_commands_give_what_is_shown(self):
        tried = self.check_commands(IMMEDIATE.match)
        self.assertGreater(tried, 15, "the commands are not found any more")

    def test_four_commands_train_on_a_text(self):
        tried = self.check_commands(OWN_TEXT.search, with_numbers=False)
        self.assertEqual(tried, 4)

    def test_commands_on_runs_have_the_form_that_is_shown(self):
        prepare_short_runs()
        tried = 0
        with contextlib.ExitStack() as servers:
            for name, page in PAGES.items():
                for command, lines in shown_commands(page):
                    if command.startswith("trireme-serve "):
                        address = self.serve(servers)
                    elif command == "cat own.jsonl":
                        (SCRATCH / "own.jsonl").write_text("\n".join(lines) + "\n")
                    elif command.startswith("deck="):
                        os.environ["deck"] = command[len('deck="'):-1] + " run.device=host"
                    if not PREPARED.match(command) or not lines:
                        continue
                    tried += 1
                    with self.subTest(page=name, command=command):
                        if command.startswith("curl "):
                            if not address or not shutil.which("curl"):
                                continue
                            command = command.replace("localhost:8080", address)
                        self.check_form(command, lines)
        self.assertGreater(tried, 20, "the commands are not found any more")

    def check_form(self, command, lines):
        printed = [line.replace(socket.gethostname(), "vm") for line in answer(command.replace("8000", "600")).splitlines()]
        if command.startswith("trireme-generate") and "--json" not in command:
            self.assertIn(re.search('--prompt "(.*?)"', command)[1], printed[0])
            return
        shown, found = "".join(form_of(line) + "\n" for line in lines), "".join(form_of(line) + "\n" for line in printed)
        # mpirun adds its own lines.
        pattern = pattern_of([*shown.splitlines(), *["..."] * command.startswith("mpirun -n 1")])
        if not re.fullmatch(pattern, found):
            self.assertEqual(shown, found)

    def serve(self, servers):
        """The address of a server of runs/licence, which ends with `servers`; None where it is not built."""
        if not (BIN / "trireme-serve").exists():
            return None
        started = servers.enter_context(Started(command_line("trireme-serve", "--checkpoint", "runs/licence", "--device", "host",
                                                             "--bind", "127.0.0.1:0")))
        for line in started.error_lines():
            if found := re.search(r"http://(\S+)", line):
                return found[1]
        raise AssertionError("the server ended")

    def test_recipes_have_the_plans_of_the_table(self):
        deck, launcher = "", ""
        for what, link, command, plan, *_ in rows(PAGES["inputs/README.md"], "Recipes"):
            deck = "inputs/" + re.search(r"\((.*)\)", link)[1] if link else deck
            starts, overrides = re.fullmatch(r"`(.*?)(?:trireme-pretrain DECK|\.\.\.)(.*)`",
                                             command).groups()
            launcher = starts if link or starts else launcher
            ranks = re.search(r"-n (\d+)", launcher)
            words = f"{overrides} --ranks {ranks[1]}" if ranks else overrides
            with self.subTest(what):
                printed = answer(f"trireme-pretrain {deck} {words} --plan run.device=cuda")
                bubble = re.search(r"pipeline bubble (\S+ %)", printed)
                self.assertIsNotNone(bubble, printed)
                sizes = r"(?:\s+[\d.]+ \w+)"  # seven purposes, their total, and the host's where there is some
                totals = re.findall(rf"^\s+\d+\s+\S+\s+\d+\s+\d+{sizes}{{7}}\s+([\d.]+) GiB{sizes}?$", printed, re.M)
                self.assertEqual(plan, f"{max(totals, key=float)} GiB, {bubble[1]}", printed)

    def test_llamas_have_the_plans_of_the_table(self):
        row = re.compile(r"^\| \[`\S+`\]\((\S+)\) \| ([\d.]+)M.*\| (\S+ GiB) \|$", re.M)
        found = row.findall(PAGES["inputs/README.md"])
        for link, parameters, plan in found:
            with self.subTest(link):
                printed = answer(f"trireme-pretrain inputs/{link} --ranks 8 --plan run.device=cuda")
                self.assertIn(f"parameters {parameters} M,", printed)
                self.assertRegex(printed, rf"verdict .* needs {plan}\b")
        self.assertGreater(len(found), 5, "the rows are not found any more")

    def test_decks_and_clusters_are_read(self):
        shutil.copytree(ROOT / "inputs/clusters", SCRATCH / "clusters")
        tried = 0
        for name, page in PAGES.items():
            for text in re.findall(r"^```yaml\n(.*?)^```$", page, re.M | re.S):
                tried += 1
                file = SCRATCH / ("clusters/page.yaml" if text.startswith("name:") else "page.yaml")
                file.write_text(text)
                with self.subTest(page=name, text=text):
                    if text.startswith("name:"):
                        result = run("trireme-plan", ROOT / "inputs/gpt2-1.5b.yaml", "--cluster", file, "--top", "1", "model.vocab=50257",
                                     "run.device=cuda")
                    elif text.startswith("model:"):
                        result = run("trireme-pretrain", file, "--print-deck", "run.device=cuda")
                    else:  # a section
                        section, body = text.split(":", 1)
                        result = run("trireme-pretrain", ROOT / "tests/regression/tiny.yaml", "--print-deck", "run.device=cuda", "data.train=x",
                                     f"{section}={textwrap.dedent(body)}")
                    self.assertEqual(result.code, 0, result)
        self.assertGreater(tried, 5, "the blocks are not found any more")

    def test_keys_exist(self):
        text = run("trireme-pretrain", "--help", "deck").out
        keys = set(re.findall(r"^ *([a-z]\w*(?:\.\w+)+)", text, re.M))
        sections = {key.rsplit(".", 1)[0] for key in keys} | {key.split(".")[0] for key in keys}
        first = "|".join(sorted({key.split(".")[0] for key in keys}))
        for name, page in PAGES.items():
            for word in re.findall(rf"`((?:{first})\.[a-z_.]+\w)[`:=]", page):
                if not word.endswith((".safetensors", ".sh", ".hpp", ".cpp", ".log")):
                    self.assertIn(word, keys | sections, name)

    def test_options_exist(self):
        known = "".join(run(f"trireme-{name}", *words, "--help").out
                        for name, *words in [["pretrain"], ["evaluate"], ["sweep"], ["generate"],
                                             ["preprocess"], ["tokenizer"], ["inspect"], ["convert"],
                                             ["report"], ["plan"], ["bench", "kernels"], ["bench", "comm"],
                                             ["bench", "profile"],
                                             *[["serve"]] * (BIN / "trireme-serve").exists()])
        for name, page in PAGES.items():
            for command, _ in shown_commands(page):
                ours = re.search(r"\btrireme-[a-z]+ (?!.* -- )(.*)", command)
                for option in re.findall(r"(?:^| )(--[a-z-]+)", ours[1] if ours else ""):
                    self.assertRegex(known, rf"{option}\b", f"{name}: {command}")

    def test_figures_show_the_committed_measurements(self):
        drawn = SCRATCH / "figures"
        subprocess.run(["python3", "-B", ROOT / "apps/bench/figures.py", "--bin", BIN, "-o", drawn], check=True, timeout=PATIENCE)
        number = re.compile(r"-?\d+(?:\.\d+)?")
        for path in drawn.glob("*.svg"):
            new, old = (file.read_text() for file in (path, ROOT / "apps/bench/figures" / path.name))
            stale = f"{path.name} is stale: python3 -B apps/bench/figures.py --bin FOLDER"
            self.assertEqual(number.sub("N", new), number.sub("N", old), stale)
            for a, b in zip(map(float, number.findall(new)), map(float, number.findall(old))):
                self.assertLess(abs(a - b), 0.5 + 0.02 * abs(b), stale)

    def test_every_program_has_its_row(self):
        listed = {re.match(r"`(trireme-\w+)", row[0])[1] for row in rows(PAGES["apps/README.md"], "List of programs")}
        built = {path.name for path in BIN.glob("trireme-*") if "." not in path.name}
        # Built where cpp-httplib is installed.
        self.assertEqual(listed - ({"trireme-serve"} - built), built)

    def test_files_exist(self):
        for name in (page for page in PAGES if page.startswith(("src/", "tests/", "CONTR"))):
            for word in re.findall(r"`([\w./-]+\.(?:hpp|cpp|cu|py|sh|txt|cmake))`", PAGES[name]):
                places = ((ROOT / name).parent, ROOT, ROOT / "src")
                self.assertTrue(any((place / word).exists() for place in places), f"{name}: {word}")

    def test_links_lead_somewhere(self):
        def anchors(page):
            return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
                    for heading in re.findall(r"^##+ (.*)$", page, re.M)}

        for name, page in PAGES.items():
            for target in re.findall(r"\]\(([^)]+)\)", page):
                file, _, anchor = target.partition("#")
                path = (ROOT / name).parent / file if file else ROOT / name
                self.assertTrue(path.exists(), f"{name}: {target}")
                if anchor:
                    self.assertIn(anchor, anchors(path.read_text()), name)

    def test_contents_name_every_section(self):
        for name, page in PAGES.items():
            contents = re.findall(r"\]\(#([^)]+)\)", page.split("\n## ")[0])
            if contents:
                sections = [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
                            for heading in re.findall(r"^## (.*)$", page, re.M)]
                self.assertEqual([each for each in contents if each in sections], sections, name)


if __name__ == "__main__":
    unittest.main(verbosity=2)
