"""The documents for people say what is true: commands that need neither ranks nor data give the output that is
shown, the recipes' table has the plans of today, and keys, options, programs and links exist."""

import os
import re
import subprocess
import unittest

from runs import BIN, HERE, SCRATCH, run

ROOT = HERE.parents[1]
PAGES = {name: (ROOT / name).read_text() for name in ("README.md", "jobs/README.md")}
README = PAGES["README.md"]

# Of the commands that are shown, those that any machine answers, in a moment and always alike.
ANSWERED_AT_ONCE = re.compile(r"^trireme-pretrain \S+ .*--(help|plan|check|print-job)|"
                              r"^trireme-convert flags|^trireme-preprocess --input news.jsonl|"
                              r"^sed |^head ")
FOLDER = "/home/me/trireme"  # where the pages' commands are typed


def setUpModule():
    """A folder that looks like this repository to the commands, beside what they write."""
    SCRATCH.mkdir(parents=True, exist_ok=True)
    for name in ("inputs", "tests", "jobs"):
        link = SCRATCH / name
        link.unlink(missing_ok=True)
        link.symlink_to(ROOT / name)
    (SCRATCH / "news.jsonl").write_text('{"text": "a"}\n{"txt": "b"}\n')
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
    # The tokenizer of the quickstart's deck, which is not made here, has so many pieces.
    command = command.replace("inputs/quickstart.yaml", "inputs/quickstart.yaml model.vocab=2048")
    environment = dict(os.environ, PATH=f"{BIN}:{os.environ['PATH']}")
    result = subprocess.run(["bash", "-c", command], env=environment, text=True, timeout=60,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return result.stdout.replace(str(SCRATCH), FOLDER)


def pattern_of(lines):
    """A regular expression for output of which `...` leaves out a part of a line, or lines."""
    return "".join(r"(.*\n)*?" if line == "..." else
                   ".*?".join(map(re.escape, line.split("..."))) + "\n" for line in lines)


def rows(page, heading):
    """The rows of the first table of a section, as lists of cells."""
    section = page.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


class Readme(unittest.TestCase):
    longMessage = True
    maxDiff = None

    def test_commands_give_what_is_shown(self):
        tried = 0
        for name, page in PAGES.items():
            for command, lines in shown_commands(page):
                if not ANSWERED_AT_ONCE.match(command):
                    continue
                with self.subTest(page=name, command=command):
                    printed = answer(command)
                    tried += 1
                    if not re.fullmatch(pattern_of(lines), printed):
                        self.assertEqual("\n".join(lines) + "\n", printed)
        self.assertGreater(tried, 10, "the commands are not found any more")

    def test_recipes_have_the_plans_of_the_table(self):
        deck, launcher = "", ""
        for what, link, command, plan, *_ in rows(README, "Recipes"):
            deck = re.search(r"\((.*)\)", link)[1] if link else deck
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
                if not word.endswith((".safetensors", ".sh")):
                    self.assertIn(word, keys | sections, name)

    def test_options_exist(self):
        known = "".join(run(f"trireme-{name}", *words, "--help").out
                        for name, *words in [["pretrain"], ["evaluate"], ["sweep"], ["generate"],
                                             ["preprocess"], ["tokenizer"], ["inspect"], ["convert"],
                                             ["report"], ["bench", "kernels"], ["bench", "comm"]])
        for name, page in PAGES.items():
            for command, _ in shown_commands(page):
                ours = re.search(r"\btrireme-[a-z]+ (?!.* -- )(.*)", command)
                for option in re.findall(r"(?:^| )(--[a-z-]+)", ours[1] if ours else ""):
                    self.assertRegex(known, rf"{option}\b", f"{name}: {command}")

    def test_every_program_has_its_row(self):
        listed = {re.match(r"`(trireme-\w+)", row[0])[1] for row in rows(README, "Programs")}
        built = {path.name for path in BIN.glob("trireme-*") if "." not in path.name}
        self.assertEqual(listed, built)

    def test_links_lead_somewhere(self):
        for name, page in PAGES.items():
            anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
                       for heading in re.findall(r"^##+ (.*)$", page, re.M)}
            for target in re.findall(r"\]\(([^)]+)\)", page):
                if target.startswith("#"):
                    self.assertIn(target[1:], anchors, name)
                else:
                    self.assertTrue((ROOT / name).parent.joinpath(target).exists(), target)

    def test_contents_name_every_section(self):
        contents = README[README.index("\n* Begin: "):].split("\n## ")[0]
        self.assertEqual(re.findall(r"\[([^\]]+)\]\(#", contents),
                         re.findall(r"^## (.*)$", README, re.M))


if __name__ == "__main__":
    unittest.main(verbosity=2)
