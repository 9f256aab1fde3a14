#!/usr/bin/env python3
"""Makes reference.json, vocab.txt and the folder jieba, from which tests/tokenizer/encdec_test.cpp
reads what EncDecTokenizer (CPM-2, Yuan 1.0) gives.

Words are those of the package jieba (Debian: python3-jieba, MIT licence), whose dictionary and
probabilities are cut down to the characters of the texts. Run it in this folder:

    python3 make_reference.py
"""
import json
import os
import pprint
import random
import re

import jieba
from jieba import finalseg

TEXTS = [
    "小明硕士毕业于中国科学院计算所，后在日本京都大学深造。",
    "我来到北京清华大学",
    "他来到了网易杭研大厦",
    "工信处女干事每月经过下属科室都要亲口交代24口交换机等技术性器件的安装工作",
    "2022年的ASC22竞赛用GPT-3.5模型，损失低于7.0，准确率99.5%。",
    "hello world 你好 world hello",
    "今天 天气 很好",
    "<n>第一行<n>第二行 two words<n>",
    "  段落之间有空白\u3000\u3000也有 tab\t和 C++ c# AT&T  ",
    "韩冰是个好人，欧阳建国是创新办主任也是欢聚时代公司云计算方面的专家",
    "𠮷野家的牛肉饭 naïve café",
    "a",
]


def cut_down():
    """Writes jieba's data for these texts alone, and makes jieba use them."""
    characters = set("".join(TEXTS))
    with open(os.path.join(os.path.dirname(jieba.__file__), "dict.txt"), encoding="utf-8") as file:
        lines = [line for line in file if set(line.split(" ")[0]) <= characters]
    os.makedirs("jieba/finalseg", exist_ok=True)
    with open("jieba/dict.txt", "w", encoding="utf-8") as file:
        file.writelines(lines)
    emit = {
        state: {c: p for c, p in row.items() if c in characters}
        for state, row in finalseg.emit_P.items()
    }
    finalseg.emit_P = emit
    tables = {"start": finalseg.start_P, "trans": finalseg.trans_P, "emit": emit}
    for name, table in tables.items():
        with open(f"jieba/finalseg/prob_{name}.py", "w", encoding="utf-8") as file:
            text = re.sub(r"'([^\x00-\x7f])'", lambda m: f"'\\u{ord(m[1]):04x}'", pprint.pformat(table))
            file.write(f"P={text}\n")
    return jieba.Tokenizer(os.path.abspath("jieba/dict.txt"))


def is_chinese(text):
    return any("\u4e00" <= c <= "\u9fff" for c in text)


def write_vocab(words):
    """A vocabulary of some of the words and pieces, so that others must be divided."""
    draw = random.Random(4)
    known = ["<unk>", "<eod>", "<pad>", "\u2582", "\u2583"]
    for word in sorted(words):
        word = word.replace(" ", "\u2582").replace("\n", "\u2583")
        if draw.random() < 0.6:
            known.append(word)
        for i, c in enumerate(word):
            if draw.random() < 0.9:
                known.append(c if i == 0 or is_chinese(c) else "##" + c)
        if len(word) > 2 and not is_chinese(word):
            known.append("##" + word[1:])
    known = list(dict.fromkeys(token for token in known if token.strip() == token and token))
    with open("vocab.txt", "w", encoding="utf-8") as file:
        file.writelines(token + "\n" for token in known)
    return {token: i for i, token in enumerate(known)}


def pieces(word, vocab):
    if len(word) > 200:
        return ["<unk>"]
    found, start = [], 0
    while start < len(word):
        for end in range(len(word), start, -1):
            part = word[start:end]
            name = part if is_chinese(part) or start == 0 else "##" + part
            if name in vocab:
                found.append(name)
                start = end
                break
        else:
            found.append("<unk>")
            start += 1
    return found


def encode(text, vocab, segmenter):
    text = text.strip().strip("<n>").replace("<n>", "\n")
    tokens = []
    for word in segmenter.cut(text, cut_all=False):
        tokens += pieces(word.replace(" ", "\u2582").replace("\n", "\u2583"), vocab)
    latin = [token != "\u2582" and not is_chinese(token) for token in tokens]
    last = len(tokens) - 1
    return [
        vocab[token]
        for i, token in enumerate(tokens)
        if not (token == "\u2582" and 0 < i < last and latin[i - 1] and latin[i + 1])
    ]


segmenter = cut_down()
prepared = [text.strip().strip("<n>").replace("<n>", "\n") for text in TEXTS]
vocab = write_vocab({word for text in prepared for word in segmenter.cut(text)})
cases = [
    {"text": t, "words": list(segmenter.cut(p)), "ids": encode(t, vocab, segmenter)}
    for t, p in zip(TEXTS, prepared)
]
with open("reference.json", "w", encoding="utf-8") as file:
    json.dump({"jieba": jieba.__version__, "cases": cases}, file, ensure_ascii=False, indent=1)
    file.write("\n")
