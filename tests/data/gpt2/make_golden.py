#!/usr/bin/env python3
"""Writes golden.json: byte strings and the ids that GPT-2's encoder gives them.

Follows OpenAI's encoder.py (same pattern, same loop over merges) and shares nothing with Trireme.
Needs the `regex` module. Run it in this folder.
"""
import json
import random
import unicodedata

import regex

PATTERN = regex.compile(r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+""")

TEXTS = [
    "", " ", "  ", "\n", " \n", "\n \n", "a", " a", "  a", "a ", "a  ", "a  b", "a\n\n b", "\t\ta", "a\r\nb",
    "Hello world", "Hello, world!", "it's we'll they've I'd don't you're I'm", "'s's 's 'S 'sx '", "IT'S", "'''s''ll'",
    "x = 3.14159; y[10] += 0x1F", "    def f(x):\n        return x**2\n\n\n", "<|endoftext|>", "a<|endoftext|>b",
    "1234567890", "12ab34", "a1b2", "...", "!?!?!? ...   ...", "http://example.org/a?b=c&d=e#f",
    "In the beginning God created the heaven and the earth.", "supercalifragilisticexpialidocious", "a" * 500,
    " " * 500, "\n" * 100, "ab" * 300, "!" * 257,
    "Grüße, naïve café — “quotes” …", "Ça va? Œuvre, Ångström, İstanbul, ſ", "Привет, мир! Ещё раз.", "Γειά σου Κόσμε",
    "你好，世界。这是一个测试。", "こんにちは世界、カタカナ", "안녕하세요 세계", "สวัสดีชาวโลก", "नमस्ते दुनिया", "שלום עולם", "مرحبا بالعالم ١٢٣",
    "e\u0301 e\u0301\u0301 \u0301", "n\u0303o", "½ ² Ⅷ ① ٣ 一 〇", "😀", "👩‍👩‍👧‍👦 👍🏽 🇫🇷 ❤️", "a😀b 😀😀 c", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈𐍉 𝟘𝟙",
    "a\u00a0b", "a \u00a0b", "a\u00a0 b", "a\u3000\u3000b", "a \u2009\u2009 b", "a\u2028b\u2029c", "a\u0085b \u0085", "a\u1680b",
    "a\u180eb \u180e c", "a\u200bb \u200b", "a\ufeffb", "\x1c\x1d\x1e\x1f a\x1c\x1fb", "\x00\x01\x7f", "a\x0b\x0cb", "\u202f5\u205f6",
    "  \u00e9", " \u00e9", "\n\u00e9", "'\u00e9", "'s\u00e9", "a\u00e91", "1\u00b21", "!\u00a1!", "a\u0301b", " \u0301", "  \u0301",
    "\U0010ffff \ue000 \ufffd",
]

INVALID = [
    b"\xff", b"a\xffb", b"\x80\x80", b"\xc3", b"\xc3(", b"\xe2\x82", b"\xe2\x82a", b"\xe2(\xa1", b"\xf0\x9f\x98", b"\xf0\x9f\x98 ",
    b"\xf0\x9f(\x80", b"\xed\xa0\x80", b"\xed\xa0\xbd\xed\xb8\x80", b"\xc0\x80", b"\xc1\xbf", b"\xe0\x80\x80", b"\xf0\x80\x80\x80",
    b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80", b"\xf8\x88\x80\x80\x80", b"\xfe\xff", b"ok \xe4\xbd\xa0\xe5\xa5 end", b"\xf1\x80\x80\xc3\xa9",
]


def random_texts(count):
    """Random texts of all planes, with characters that Unicode 3.2 had: every later version agrees on them."""
    draw = random.Random(1234)
    known = [c for c in range(0x110000)
             if not 0xD800 <= c < 0xE000 and unicodedata.ucd_3_2_0.category(chr(c)) != "Cn"]
    spaces = " \t\n\r\x0b\x0c\x1c\x1f\x85\xa0\u1680\u2000\u200a\u2028\u202f\u205f\u3000\u200b\u180e"
    ascii_ = [chr(c) for c in range(128)]
    for _ in range(count):
        sources = draw.sample([ascii_, list(spaces), list("'stremvld "), list("aé1²,— \n"), known], draw.randint(1, 4))
        picks = (draw.choice(draw.choice(sources)) for _ in range(draw.randint(1, 60)))
        yield "".join(chr(p) if isinstance(p, int) else p for p in picks)


def random_bytes(count):
    """Texts with bytes damaged, so that most are not UTF-8."""
    draw = random.Random(5678)
    for _ in range(count):
        data = bytearray("aé€😀 你 x".encode() * draw.randint(1, 3))
        for _ in range(draw.randint(1, 8)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        yield bytes(data)


def byte_alphabet():
    visible = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [b for b in range(256) if b not in visible]
    return {**{b: chr(b) for b in visible}, **{b: chr(256 + n) for n, b in enumerate(hidden)}}


class Encoder:
    def __init__(self):
        with open("vocab.json", encoding="utf-8") as file:
            self.ids = json.load(file)
        with open("merges.txt", encoding="utf-8") as file:
            lines = file.read().split("\n")[1:-1]
        self.ranks = {tuple(line.split()): rank for rank, line in enumerate(lines)}
        self.alphabet = byte_alphabet()

    def merge(self, word):
        while len(word) > 1:
            pairs = set(zip(word, word[1:]))
            best = min(pairs, key=lambda pair: self.ranks.get(pair, float("inf")))
            if best not in self.ranks:
                break
            merged, i = [], 0
            while i < len(word):
                if tuple(word[i:i + 2]) == best:
                    merged.append(word[i] + word[i + 1])
                    i += 2
                else:
                    merged.append(word[i])
                    i += 1
            word = merged
        return word

    def encode(self, data):
        text = data.decode("utf-8", errors="replace")
        ids = []
        for token in PATTERN.findall(text):
            ids += [self.ids[piece] for piece in self.merge([self.alphabet[b] for b in token.encode()])]
        return ids


def main():
    encoder = Encoder()
    cases = [text.encode() for text in TEXTS] + INVALID
    cases += [text.encode() for text in random_texts(400)] + list(random_bytes(100))
    with open("golden.json", "w", encoding="ascii") as file:
        rows = ",\n".join(json.dumps({"bytes": data.hex(), "ids": encoder.encode(data)}) for data in cases)
        file.write(f"[\n{rows}\n]\n")


if __name__ == "__main__":
    main()
