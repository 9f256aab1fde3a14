#!/usr/bin/env python3
"""Makes small corpora of sentences, and BERT's samples of them by numpy and Python's random: an independent
implementation of Megatron-LM's sample map and masking and of its first release's sampling.

    reference.py pairs|first-release FOLDER COUNT

writes FOLDER/<i>.bin and .idx for each corpus, and prints a JSON object a line: its configuration and samples.
"""
import json
import random
import struct
import sys

import numpy

CLS, SEP, MASK, PAD, FIRST_WORD = 1, 2, 3, 0, 4


class Mt19937x64:
    """std::mt19937_64 (Matsumoto and Nishimura 2000)."""

    def __init__(self, seed):
        self.state = [seed]
        for i in range(1, 312):
            last = self.state[-1]
            self.state.append((6364136223846793005 * (last ^ last >> 62) + i) % 2**64)
        self.at = 312

    def draw(self):
        if self.at == 312:
            s = self.state
            for i in range(312):
                x = s[i] & 0xFFFFFFFF80000000 | s[(i + 1) % 312] & 0x7FFFFFFF
                s[i] = s[(i + 156) % 312] ^ x >> 1 ^ (0xB5026F5AA96619E9 if x & 1 else 0)
            self.at = 0
        x = self.state[self.at]
        self.at += 1
        x ^= x >> 29 & 0x5555555555555555
        x ^= x << 17 & 0x71D67FFFEDA60000
        x ^= x << 37 & 0xFFF7EEE000000000
        return (x ^ x >> 43) % 2**64


def mt19937(seed):
    """Draws of std::mt19937: numpy's generator, seeded in the same way."""
    state = numpy.random.RandomState(seed)
    return lambda: int(state.randint(0, 2**32, dtype=numpy.uint64))


def make_corpus(rng, folder, number, ids):
    """Documents: lists of sentences, which are lists of ids."""
    long_sentences = rng.random() < 0.3
    documents = []
    for _ in range(rng.randint(1, 12)):
        sentences = []
        for _ in range(rng.choice([0, 1, 1, 2, 2, 3, 5, 9, 20])):
            length = rng.randint(1, 25)
            if long_sentences and rng.random() < 0.05:
                length = rng.choice([511, 512, 513, 600])
            sentences.append([rng.randrange(FIRST_WORD, ids) for _ in range(length)])
        documents.append(sentences)
    documents += [[[4, 5, 6], [7]], [[8, 9]], [[4], [5, 9]]]  # some of every corpus can be samples
    rng.shuffle(documents)

    sentences = [sentence for document in documents for sentence in document]
    lengths = [len(sentence) for sentence in sentences]
    firsts = numpy.cumsum([0] + [len(document) for document in documents])
    pointers = numpy.cumsum([0] + lengths)[:-1] * 2
    with open(f"{folder}/{number}.bin", "wb") as file:
        for sentence in sentences:
            file.write(numpy.array(sentence, "<u2").tobytes())
    with open(f"{folder}/{number}.idx", "wb") as file:
        file.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(lengths), len(firsts)))
        for values, kind in ((lengths, "<i4"), (pointers, "<i8"), (firsts, "<i8")):
            file.write(numpy.array(values, kind).tobytes())
    return documents


def pair_map(documents, wanted, sequence, short, seed, min_sentences):
    ratio = int(1 / short + 0.5) if short else 0
    draw, rows, epochs = mt19937(seed), [], 0

    def target():
        if not ratio:
            return sequence - 3
        value = draw()
        return 2 + value % (sequence - 4) if value % ratio == 0 else sequence - 3

    while (epochs < 1 if wanted is None else len(rows) < wanted):
        epochs += 1
        first = 0
        for document in documents:
            lengths = [len(sentence) for sentence in document]
            usable = len(lengths) >= min_sentences and (len(lengths) < 2 or max(lengths) <= 512)
            if usable:
                goal, begin = target(), 0
                for s in range(len(lengths)):
                    left = len(lengths) - s - 1
                    full = sum(lengths[begin:s + 1]) >= goal and s + 1 - begin >= min_sentences
                    if left == 0 or (full and left > 1):
                        rows.append((first + begin, first + s + 1, goal))
                        goal, begin = target(), s + 1
            first += len(lengths)
    shuffle = Mt19937x64(seed + 1)
    for i in range(len(rows) - 1, 0, -1):
        j = shuffle.draw() % (i + 1)
        rows[i], rows[j] = rows[j], rows[i]
    return rows


def truncate(a, b, most, rng):
    while len(a) + len(b) > most:
        longer = a if len(a) > len(b) else b
        del longer[0 if rng.random() < 0.5 else -1]


def finish(tokens, types, labels, sequence, label):
    rest = sequence - len(tokens)
    return {"tokens": tokens + [PAD] * rest, "types": types + [0] * rest, "labels": labels + [-1] * rest,
            "length": len(tokens), "sentence_label": label}


def join(a, b):
    tokens, types = [CLS] + a + [SEP], [0] * (len(a) + 2)
    if b:
        tokens, types = tokens + b + [SEP], types + [1] * (len(b) + 1)
    return tokens, types


def pair_sample(sentences, row, number, config):
    rng = numpy.random.RandomState((config["seed"] + number) % 2**32)
    parts, target = sentences[row[0]:row[1]], row[2]
    pivot, swapped = len(parts), False
    if config["pairs"]:
        pivot = rng.randint(low=1, high=len(parts)) if len(parts) >= 3 else 1
        swapped = rng.random() < 0.5
    a, b = sum(parts[:pivot], []), sum(parts[pivot:], [])
    if swapped:
        a, b = b, a
    truncate(a, b, target, rng)
    tokens, types = join(a, b)

    words = []
    for i, token in enumerate(tokens):
        if token in (CLS, SEP):
            continue
        if words and token % config["continues"] == 0:
            words[-1].append(i)
        else:
            words.append([i])
    limit = min(config["mask"] * target, max(1, int(round(len(tokens) * config["mask"]))))
    if config["max_predictions"]:
        limit = min(limit, config["max_predictions"])
    sizes = numpy.arange(config["ngram"]) + 1
    shares = 1.0 / sizes
    shares = shares / shares.sum()
    starts = list(range(len(words)))
    rng.shuffle(starts)
    masked, labels, count = list(tokens), [-1] * len(tokens), 0
    for start in starts:
        if count >= limit:
            break
        n = int(rng.choice(sizes, p=shares / shares.sum()))
        while n > 0 and count + len(sum(words[start:start + n], [])) > limit:
            n -= 1
        chosen = sum(words[start:start + n], [])
        if n == 0 or any(labels[i] >= 0 for i in chosen):
            continue
        for i in chosen:
            labels[i] = tokens[i]
            if rng.random() < 0.8:
                masked[i] = MASK
            elif rng.random() >= 0.5:
                masked[i] = int(rng.randint(0, config["ids"]))
        count += len(chosen)
    return finish(masked, types, labels, config["sequence"], int(swapped) if config["pairs"] else -1)


def first_release_pair(documents, target, rng):
    chosen, length = [], 0
    while length < 1:
        first = None
        while first is None or not documents[first]:
            first = rng.randint(0, len(documents) - 1)
        place = rng.randint(0, len(documents[first]) - 1)
        for sentence in documents[first][place:]:
            chosen.append(sentence)
            length += len(sentence)
            if length >= target:
                break
    count = rng.randint(0, len(chosen)) if len(chosen) >= 2 else 1
    a, b = sum(chosen[:count], []), []
    if len(chosen) > 1 and rng.random() >= 0.5:
        return a, sum(chosen[count:], []), False
    while not b:
        other = None
        while other is None or not documents[other]:
            other = rng.randint(0, len(documents) - 2)
            other += int(other >= first)
        place = rng.randint(0, len(documents[other]) - 1)
        for sentence in documents[other][place:]:
            b += sentence
            if len(b) >= target - len(a):
                break
    return a, b, True


def first_release_sample(documents, number, config):
    rng, sequence = random.Random(config["seed"] + number), config["sequence"]
    target = rng.randint(2, sequence) if rng.random() < config["short"] else sequence
    a, b, label = [], [], None
    while not a or not b:
        a, b, label = first_release_pair(documents, target, rng)
    truncate(a, b, sequence - 3, rng)
    tokens, types = join(a, b)
    candidates = list(range(1, 1 + len(a))) + list(range(2 + len(a), 2 + len(a) + len(b)))
    rng.shuffle(candidates)
    masked, labels = list(tokens), [-1] * len(tokens)
    limit = config["max_predictions"] or -int(-sequence * config["mask"] / 10 // 1) * 10
    for i in sorted(candidates[:min(limit, max(1, int(round(len(tokens) * config["mask"]))))]):
        labels[i] = tokens[i]
        if rng.random() < 0.8:
            masked[i] = MASK
        elif rng.random() >= 0.5:
            masked[i] = rng.choice(range(config["ids"]))
    return finish(masked, types, labels, sequence, int(label))


def main():
    kind, folder, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    for number in range(count):
        rng = random.Random(1000 + number)
        config = {"sequence": rng.choice([5, 6, 16, 33, 64, 128]), "short": rng.choice([0, 0.01, 0.1, 0.3, 1]),
                  "seed": rng.choice([1234, 0, 7, rng.randrange(2**31 - 1)]), "mask": rng.choice([0.15, 0.15, 0.3]),
                  "ngram": rng.choice([1, 3, 3, 5]), "max_predictions": rng.choice([None, None, 3]),
                  "continues": rng.choice([3, 10**6]), "ids": rng.choice([10, 37, 300]),
                  "pairs": rng.random() < 0.7, "samples": rng.choice([None, 1, 20, 150])}
        documents = make_corpus(rng, folder, number, config["ids"])
        begin = rng.choice([0, 0, 1])
        config["documents"] = [begin, len(documents)]
        if kind == "pairs":
            skipped = sum(len(document) for document in documents[:begin])
            rows = pair_map(documents[begin:], config["samples"], config["sequence"], config["short"],
                            config["seed"], 2 if config["pairs"] else 1)
            config["map"] = [[row[0] + skipped, row[1] + skipped, row[2]] for row in rows]
            sentences = [sentence for document in documents for sentence in document]
            config["read"] = [pair_sample(sentences, row, i, config)
                              for i, row in enumerate(config["map"][:6])]
        else:
            config["read"] = [first_release_sample(documents[begin:], i, config) for i in range(6)]
        print(json.dumps(config))


main()
