#!/usr/bin/env python3
"""Makes reference.json: expected results of src/corpus, computed another way.

Repairs are those of ftfy 6.3 (pip install ftfy), similarities and n-gram rules are written here
with Python's sets and regular expressions. Run it in this folder after a rule has changed:

    python3 make_reference.py > reference.json
"""
import json
import random
import re
import sys

import ftfy

TEXTS = [
    "plain text stays as it is",
    "schÃ¶n, naÃ¯ve cafÃ©",
    "donâ€™t say â€œneverâ€\x9d â€” ever",
    "The Mona Lisa doesnÃƒÂ¢Ã¢â€šÂ¬Ã¢â€žÂ¢t have eyebrows.",
    "ÐŸÑ€Ð¸Ð²ÐµÑ‚, Ð¼Ð¸Ñ€",
    "Î\x9aÎ±Î»Î·Î¼Î\xadÏ\x81Î±",
    "ï»¿a byte-order mark that was misread",
    "æ—¥æœ¬èªž",
    "a broken ðŸ˜‚ face",
    "\u2018single\u2019 and \u201cdouble\u201d quotes, \u02bcmodifier",
    "fish &amp; chips &eacute; &#233; &#xe9; &#150; &Omega; &hellip; &nosuch; AT&T",
    "&lt;b&gt; is left &amp; alone where there is <b>",
    "a\r\nb\rc\u2028d\u2029e",
    "bell\x07 null\x00 escape\x1b[31mred\x1b[0m tab\there \ufefffeff",
    "\ufb01nd the \ufb02oor, o\ufb00ice, a\ufb03x",
    "\uff26\uff35\uff2c\uff2c\uff37\uff29\uff24\uff34\uff28\u3000text\uff01",
    "e\u0301 becomes one character, so does A\u030a",
    "it\x92s C1 \x93quoted\x94 \x85 dots",
    "CHÂTEAU and SÃO PAULO and Â°C stay",
    "price: 5â‚¬ or Â£4",
    "Ã€ la carte, Ã‰tude, Ãœber",
    "crÃ¨me brÃ»lÃ©e dÃ©jÃ\xa0 vu",
    "Å‚Ã³dÅº",
]


def shingles(text, n=5):
    return {text[i : i + n] for i in range(0, len(text) - n)}


def similarities():
    """Pairs of texts with their similarity under each rule."""
    draw = random.Random(5)
    words = ["alpha", "beta", "gamma", "delta", "épsilon", "ζήτα", "七", "eight", "nine", "ten"]
    pairs = [("", "abcdef"), ("abcde", "abcde"), ("abcdef", "abcdef"), ("abcdefgh", "abcdefxy")]
    for changes in (0, 1, 3, 10, 40):
        a = [draw.choice(words) for _ in range(120)]
        b = list(a)
        for _ in range(changes):
            b[draw.randrange(len(b))] = draw.choice(words)
        pairs.append((" ".join(a), " ".join(b[: 120 - changes])))
    rows = []
    for a, b in pairs:
        x, y = shingles(a), shingles(b)
        both = len(x & y)
        values = [0.0] * 3
        if x and y:
            values = [both / len(x | y), both / min(len(x), len(y)), both / max(len(x), len(y))]
        rows.append({"a": a, "b": b, "union": values[0], "min": values[1], "max": values[2]})
    return rows


def words_of(text):
    found = list(re.finditer(r"\w+", text.lower()))
    return [m.group(0) for m in found], [m.start() for m in found]


def ngrams_of(texts, largest, smallest):
    """Runs of `largest` words; shorter texts whole."""
    known = set()
    for text in texts:
        words, _ = words_of(text)
        if len(words) >= smallest:
            for i in range(max(1, len(words) - largest + 1)):
                known.add(tuple(words[i : i + largest]))
    return known


def first_match(text, known, largest):
    """The place and length of the n-gram at which a document is cut, or None."""
    words, starts = words_of(text)
    if len(words) < largest:
        return None
    sizes = sorted({len(ngram) for ngram in known} - {largest})
    windows = len(words) - largest + 1
    looked = [(i, n) for i in range(windows) for n in [largest] + sizes]
    if windows > 1:
        looked += [(i, n) for n in sizes for i in range(windows - 1, len(words) - n + 1)]
    for i, n in looked:
        if tuple(words[i : i + n]) in known:
            return starts[i], len(" ".join(words[i : i + n]))
    return None


def parts_of(text, known, largest, margin, smallest_part):
    parts = []
    while True:
        match = first_match(text, known, largest)
        if match is None:
            return parts + [text]
        begin, length = match
        ends = [i for i, c in enumerate(text) if c in ".!?"]
        before = [i for i in ends if 0 < i <= begin - margin]
        after = [i for i in ends if i >= begin + length + margin]
        if before and before[-1] + 1 > smallest_part:
            parts.append(text[: before[-1] + 1])
        rest = text[after[0] + 1 :] if after else ""
        if len(rest) <= smallest_part:
            return parts
        text = rest


def contamination():
    draw = random.Random(9)
    names = ["Émile", "the", "Fox_1", "runs", "over", "2nd", "hill", "and", "Straße", "sees", "λόγος"]
    evaluation = [" ".join(draw.choice(names) for _ in range(n)) for n in (30, 20, 9, 10, 7)]
    evaluation.append("One two, three four five six seven; eight nine")
    known = ngrams_of(evaluation, 13, 8)
    documents = []
    for planted in range(14):
        sentences = []
        for _ in range(draw.randrange(4, 40)):
            size = draw.randrange(3, 16)
            words = [draw.choice(names) + draw.choice("abcdefgh") for _ in range(size)]
            sentences.append(" ".join(words) + draw.choice(".!?"))
        for _ in range(planted % 5):
            text = draw.choice(evaluation).upper()
            sentences.insert(draw.randrange(len(sentences) + 1), text + draw.choice([".", "", ","]))
        document = " ".join(sentences)
        parts = parts_of(document, known, 13, 20, 60)
        documents.append({"text": document, "parts": parts})
    return {"evaluation": evaluation, "ngrams": len(known), "documents": documents}


json.dump(
    {
        "ftfy": ftfy.__version__,
        "repairs": [[text, ftfy.fix_text(text)] for text in TEXTS],
        "similarities": similarities(),
        "contamination": contamination(),
    },
    sys.stdout,
    indent=1,
)
print()
