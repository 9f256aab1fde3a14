// What a model says of the targets of a cloze dataset, and the counted baselines that it must beat.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <span>
#include <vector>

#include "data/dataset.hpp"
#include "evaluate/text_datasets.hpp"

namespace trireme::evaluate {

// What a model says of the targets of a cloze dataset: log-probabilities, and the most likely
// token.

/// Logits of one token on one tensor rank: of the ids from `first_id` on.
struct LocalLogits {
  std::int64_t first_id = 0;
  std::vector<float> values;
};

/// What the head computed of consecutive tokens of a micro-batch (Batch's memory layout).
struct ScoredTokens {
  std::int64_t first = 0;
  /// Of each token's label over the whole vocabulary, in nats, the same on all tensor ranks;
  /// undefined where the label is ignored.
  std::vector<double> log_probabilities;
  /// The logits of a token, its number counted from the start of the micro-batch.
  std::function<LocalLogits(std::int64_t token)> logits;
};

/// Of every target its log-probability and, if wanted, the most likely token in its place, over all
/// ranks: of equal logits the lower id.
class ClozeScores {
 public:
  enum class Want { log_probabilities, best_tokens };

  /// `dataset` must outlive this.
  explicit ClozeScores(const ClozeDataset& dataset, Want want = Want::best_tokens);

  /// Takes part of a micro-batch that begins with sample `first_sample`.
  void add(const data::Batch& batch, std::int64_t first_sample, const ScoredTokens& tokens);

  /// Combines the ranks, each of which may have seen any part. `max` takes the maximum of each of
  /// `count` numbers over all ranks.
  void combine(const std::function<void(double* values, std::size_t count)>& max);

  // After combine():

  /// The sum of the log-probabilities of item `item`'s target.
  double log_probability(std::int64_t item) const;
  /// Whether every token of its target is the most likely one; with Want::best_tokens.
  bool is_correct(std::int64_t item) const;
  /// How many items are.
  std::int64_t correct() const;

 private:
  std::span<const double> of_item(const std::vector<double>& values, std::int64_t item) const;

  const ClozeDataset& dataset_;
  Want want_;
  std::vector<std::size_t> offsets_;  ///< of each item's first target in the vectors below
  std::vector<double> log_probability_, logit_, id_;
};

// Counted baselines: what a model must beat to have learnt more than frequencies.

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
