#!/usr/bin/env python3
"""Writes index_golden.json: sample indices of small corpora, made with numpy by the sequential algorithm
of Megatron-LM (gpt_dataset.py and helpers.cpp), against which the closed form in src/data is tested.

    python3 make_index_golden.py > index_golden.json
"""
import json

import numpy


def sample_index(lengths, document_index, sequence, samples):
    rows, slot, offset = [[0, 0]], 0, 0
    for _ in range(samples):
        remaining = sequence + 1
        while remaining:
            here = lengths[document_index[slot]] - offset
            remaining -= here
            if remaining <= 0:
                offset += remaining + here - 1
                remaining = 0
            else:
                slot, offset = slot + 1, 0
        rows.append([slot, offset])
    return rows


def indices(lengths, begin, end, sequence, wanted, seed):
    per_epoch = sum(lengths[begin:end])
    epochs = 1
    while epochs * per_epoch < wanted * sequence + 1:
        epochs += 1
    separate, before_last = False, 0
    if epochs > 1:
        before_last = ((epochs - 1) * per_epoch - 1) // sequence
        samples_per_epoch = (per_epoch - 1) // sequence
        separate = wanted - before_last < int(0.80 * samples_per_epoch)
    random = numpy.random.RandomState(seed)

    def documents(times):
        index = numpy.tile(numpy.arange(begin, end, dtype=numpy.int32), times)
        random.shuffle(index)
        return index

    document = numpy.concatenate([documents(epochs - 1), documents(1)]) if separate else documents(epochs)
    samples = (epochs * per_epoch - 1) // sequence
    rows = sample_index(lengths, document, sequence, samples)

    def shuffled(first, last):
        index = numpy.arange(first, last, dtype=numpy.uint32)
        random.shuffle(index)
        return index

    if separate:
        shuffle = numpy.concatenate([shuffled(0, before_last), shuffled(before_last, samples)])
    else:
        shuffle = shuffled(0, samples)
    return dict(lengths=lengths, begin=begin, end=end, sequence=sequence, wanted=wanted, seed=seed, epochs=epochs,
                separate=separate, document=document.tolist(), sample=rows, shuffle=shuffle.tolist())


def main():
    random = numpy.random.RandomState(7)
    cases = []
    for case in range(24):
        lengths = [int(n) for n in random.randint(0, 40, size=random.randint(3, 30))]
        for empty in random.randint(0, len(lengths), size=len(lengths) // 3):
            lengths[empty] = 0
        lengths[1] = max(1, lengths[1])
        begin = 0 if case % 2 else 1
        cases.append(indices(lengths, begin, len(lengths) - case % 2, int(random.randint(1, 24)),
                             int(random.randint(1, 120)), int(random.randint(0, 2**31))))
    assert {case["separate"] for case in cases} == {False, True} and 1 in {case["epochs"] for case in cases}
    print("[" + ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases) + "]")


if __name__ == "__main__":
    main()
