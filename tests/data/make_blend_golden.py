#!/usr/bin/env python3
"""Writes blend_golden.json: which dataset each sample of a blend comes from, and the samples that each dataset is
built for, made with numpy by the algorithm of Megatron-LM (blended_megatron_dataset_builder.py, blended_dataset.py
and helpers.cpp), against which src/data/split.cpp is tested.

    python3 make_blend_golden.py > blend_golden.json
"""
import json
import math

import numpy


def normalize(weights):
    weights = numpy.array(weights, dtype=numpy.float64)
    return (weights / numpy.sum(weights)).tolist()


def weighted(weights, samples):
    weights = normalize(weights)
    shares = [math.ceil(samples * weight) for weight in weights]
    built = [math.ceil(math.ceil(samples * weight) * (1 + 0.005)) for weight in weights]
    again = normalize(weights)
    taken, order = [0] * len(weights), []
    for i in range(sum(shares)):
        errors = [weight * max(float(i), 1.0) - count for weight, count in zip(again, taken)]
        order.append(errors.index(max(errors)))
        taken[order[-1]] += 1
    return dict(weights=weights, normalized=again, samples=samples, shares=shares, built=built, dataset=order)


def exhaustive(sizes):
    weights = [size / sum(sizes) for size in sizes]
    taken, order = [0] * len(sizes), []
    for i in range(sum(sizes)):
        left = [d for d in range(len(sizes)) if taken[d] < sizes[d]]
        errors = [weights[d] * max(float(i), 1.0) - taken[d] for d in left]
        order.append(left[errors.index(max(errors))])
        taken[order[-1]] += 1
    return dict(sizes=sizes, dataset=order)


random = numpy.random.RandomState(7)
uneven = [round(w, 3) for w in (0.01 + random.random_sample(11)).tolist()]
many = [round(w, 3) for w in (0.01 + random.random_sample(150)).tolist()]
given = [[0.7, 0.3], [1, 1, 1], [0.1] * 10, [5.0], [0.5, 0.2, 0.2, 0.1], uneven, many]
print(json.dumps(dict(
    weighted=[dict(weighted(weights, samples), given=weights) for weights, samples in zip(
        given, [1000, 100, 333, 7, 1001, 600, 500])],
    exhaustive=[exhaustive(sizes) for sizes in [[3, 5], [1, 1, 1], [7, 200, 40, 1], [9]]])))
