// Counted baselines: what a model must beat to have learnt more than frequencies.
#pragma once

#include <cstdint>
#include <cstdio>

#include "data/dataset.hpp"

namespace trireme::evaluate {

/// Mean negative log-likelihood per token in nats of counted models, the same labels as a GPT's
/// loss.
struct NgramLoss {
  double unigram = 0.0;
  double bigram = 0.0;
  std::int64_t tokens = 0;
};

/// Counts tokens and pairs of `train` (each of its samples once) and scores `held_out`. The unigram
/// has one added to each count; the bigram is interpolated with it by Witten-Bell: P(b|a) = (c(a,b)
/// + T(a) P(b)) / (c(a) + T(a)), T(a) the number of different followers of a. Source: Chen,
/// Goodman, "An empirical study of smoothing techniques for language modeling" (1998), section 2.4.
/// Datasets of tokens and labels (data::field), the ids of both below `vocab`. Reads both wholly,
/// in one process, and keeps a number for each pair that differs in memory. `progress` gets a
/// progress meter, null nothing. Throws as Dataset::read.
NgramLoss ngram_loss(const data::Dataset& train, const data::Dataset& held_out, std::int64_t vocab,
                     std::FILE* progress = nullptr);

}  // namespace trireme::evaluate
