"""The pages (README.md of every folder, CONTRIBUTING.md, CHANGELOG.md): their blocks of commands and output, which test
compares which, and how output is compared with what a page shows."""

import contextlib
import json
import re

from runs import HERE

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
# Commands on runs and data that the pages made before: a short run each, whose output has the form that is shown.
PREPARED = re.compile(r"^trireme-inspect runs|^trireme-generate --checkpoint runs/[ql]|^(mpirun -n 2 )?trireme-evaluate \$deck|"
                      r"^trireme-tokenizer train --type|^trireme-preprocess --input data/quick|^echo .* --model data/|"
                      r"^trireme-report (summary|plot|export|diff)|^trireme-plan inputs/gpt2-xl|^trireme-convert hf|"
                      r"^trireme-bench profile|^mpirun -n 1 trireme-pretrain tiny.yaml : .* other.yaml|^curl ")
# Commands on the reader's own text: their output is compared without its numbers.
OWN_TEXT = re.compile(r"\bmy\.txt|=data/my|runs/my")


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


def pattern_of(lines, with_numbers=True):
    """A regular expression for output in which `...` stands for a part of a line, or for lines."""
    def part(text):
        if with_numbers:
            return re.escape(text)
        return r"[\d.,E+\-]+".join(map(re.escape, re.split(r"\d[\d.,E+\-]*", text)))

    return "".join(r"(.*\n)*?" if line == "..." else
                   ".*?".join(map(part, line.split("..."))) + "\n" for line in lines)


def form_of(text):
    """`text` with its numbers and widths taken out; of an object of JSON the names and types of its values."""
    def types(value):
        if isinstance(value, dict):
            return {name: types(each) for name, each in value.items()}
        return [types(value[0])] if isinstance(value, list) and value and isinstance(value[0], dict) else type(value).__name__

    if text.startswith(("{", "[")):
        with contextlib.suppress(ValueError):  # "[before the start of training step]"
            return json.dumps(types(json.loads(text)))
    return re.sub(r"\b[0-9a-f]{16}\b|-?\d+(\.\d+)?([eE][+-]?\d+)?", "N", re.sub(" +", " ", text)).rstrip()
