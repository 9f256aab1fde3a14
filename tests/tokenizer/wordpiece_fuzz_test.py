#!/usr/bin/env python3
"""trireme-tokenizer's WordPiece against tests/data/wordpiece/reference.py on thousands of random odd texts."""
import json
import os
import random
import subprocess
import sys
import unicodedata

HERE = os.path.dirname(os.path.abspath(__file__))
DATA = os.path.join(HERE, "..", "data", "wordpiece")
sys.path.insert(0, DATA)
import reference  # noqa: E402

TEXTS = int(os.environ.get("TRIREME_FUZZ_TEXTS", "4000"))
SEED = int(os.environ.get("TRIREME_FUZZ_SEED", "1"))


def known_characters():
    """Characters on which Python's Unicode and 15.0, that of the tokenizer, agree."""
    old = tuple(map(int, unicodedata.unidata_version.split("."))) <= (15, 0, 0)
    table = unicodedata if old else unicodedata.ucd_3_2_0
    return [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000 and c != 0x0A
            and (table.category(chr(c)) != "Cn" or c & 0xFFFE == 0xFFFE)
            and table.category(chr(c)) == unicodedata.category(chr(c))]


def random_texts():
    draw = random.Random(SEED)
    known = known_characters()
    by_category = {}
    for char in known:
        by_category.setdefault(unicodedata.category(char), []).append(char)
    rare = [by_category[name] for name in sorted(by_category)]
    cased = [c for c in known if c.lower() != c or c.upper() != c]
    composed = [c for c in known if unicodedata.normalize("NFD", c) != c]
    marks = by_category["Mn"] + by_category["Mc"] + by_category["Me"]
    with open(os.path.join(DATA, "vocab.txt"), encoding="utf-8", newline="\n") as file:
        pieces = [line.rstrip("\n").removeprefix("##") for line in file]
    for _ in range(TEXTS):
        sources = draw.sample([list("the Quick, (STREM'vld) \t"), list("Σσςαβ.:'-ΑΩ \u0345\u0301"), known, cased, composed, marks,
                               pieces, pieces, list(" \u2028\u200b\u00ad\ufffd\x00\x85\x1c"), draw.choice(rare)],
                              draw.randint(1, 5))
        length = draw.randint(1, 30) if draw.random() < 0.95 else draw.randint(80, 250)
        yield "".join(draw.choice(draw.choice(sources)) for _ in range(length))


def main():
    texts = list(random_texts())
    vocabulary = reference.read_vocabulary(os.path.join(DATA, "vocab.txt"))
    data = "".join(text + "\n" for text in texts).encode()
    for lowercase in (False, True):
        program = [os.path.join(os.environ["TRIREME_BIN"], "trireme-tokenizer"), "encode", "--tokenizer", "wordpiece",
                   "--vocab", os.path.join(DATA, "vocab.txt"), "--lowercase", str(lowercase).lower()]
        output = subprocess.run(program, input=data, stdout=subprocess.PIPE, check=True).stdout.decode()
        lines = output.split("\n")[:-1]
        assert len(lines) == len(texts), f"{len(lines)} lines for {len(texts)} texts"
        tokens = unknown = 0
        for text, line in zip(texts, lines):
            expected = reference.encode(text, vocabulary, lowercase)
            assert json.loads(line) == expected, f"lowercase {lowercase}, {text!a}: {line}, expected {expected}"
            tokens += len(expected)
            unknown += expected.count(vocabulary["[UNK]"])
        assert unknown < 0.8 * tokens, f"{unknown} of {tokens} tokens are unknown: the texts test too little"
        print(f"lowercase {lowercase}: {len(texts)} texts, {tokens} tokens, {unknown} unknown: equal")


if __name__ == "__main__":
    main()
