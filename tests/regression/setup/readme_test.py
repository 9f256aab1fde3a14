"""The pages (README.md of every folder, CONTRIBUTING.md, CHANGELOG.md) are true: commands that need neither ranks
nor data give the output that is shown, those that train on the reader's text do so, the recipes' table has
today's plans, and keys, options, programs, files and links exist."""

import os
import re
import shutil
import subprocess
import unittest

from runs import BIN, HERE, PATIENCE, SCRATCH, run

ROOT = HERE.parents[1]
FOLDERS = ("apps", "inputs", "jobs", "src", "tests")
PAGES = {str(path.relative_to(ROOT)): path.read_text()
         for path in [*ROOT.glob("*.md"),
                      *(page for folder in FOLDERS for page in (ROOT / folder).rglob("README.md"))]
         if "tests/data" not in str(path)}

# Commands that any machine answers in a moment, always with the same output.
IMMEDIATE = re.compile(r"^trireme-pretrain (\S+ .*)?--(help|plan|check|print-job|print-deck)|"
                       r"^trireme-convert flags|^trireme-preprocess --input news.jsonl|"
                       r"^echo .* --vocab tests/data/|^trireme-preprocess presplit --input tests/data/|"
                       r"^sed |^head ")
# Commands on the reader's own text: their output is compared without its numbers.
OWN_TEXT = re.compile(r"\bmy\.txt|=data/my|runs/my")
SHORT_RUN = " train.iterations=4 batch.global=4 evaluate.iterations=1 log.every=2"
FOLDER = "/home/me/trireme"  # the working directory of the pages' commands


def setUpModule():
    """A folder that looks like this repository to the commands, and takes what they write."""
    SCRATCH.mkdir(parents=True, exist_ok=True)
    for name in ("inputs", "tests", "jobs"):
        link = SCRATCH / name
        link.unlink(missing_ok=True)
        link.symlink_to(ROOT / name)
    (SCRATCH / "news.jsonl").write_text('{"text": "a"}\n{"txt": "b"}\n')
    (SCRATCH / "my.txt").write_text("".join(PAGES.values()))
    for name in ("data", "runs"):
        shutil.rmtree(SCRATCH / name, ignore_errors=True)
    (SCRATCH / "data").mkdir()
    os.chdir(SCRATCH)


def blocks(page):
    """The page's blocks of text as it stands, without those of another language."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.M | re.S)
    return [text for language, text in fenced if not language]


def shown_commands(page):
    """Pairs of a command and the lines that the page shows of its output."""
    for block in blocks(page):
        for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
            command, _, output = re.match(r"((?:[^\n]*\\\n)*[^\n]*)(\n|$)(.*)", part, re.S).groups()
            yield command, output.splitlines()


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


def pattern_of(lines, with_numbers=True):
    """A regular expression for output in which `...` stands for a part of a line, or for lines."""
    def part(text):
        if with_numbers:
            return re.escape(text)
        return r"[\d.,E+\-]+".join(map(re.escape, re.split(r"\d[\d.,E+\-]*", text)))

    return "".join(r"(.*\n)*?" if line == "..." else
                   ".*?".join(map(part, line.split("..."))) + "\n" for line in lines)


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
                totals = re.findall(r"([\d.]+) GiB\n", printed)
                self.assertEqual(plan, f"{max(totals, key=float)} GiB, {bubble[1]}", printed)

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
