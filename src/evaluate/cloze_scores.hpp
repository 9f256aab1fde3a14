// What a model says of the targets of a cloze dataset: log-probabilities, and the most likely
// token.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "evaluate/text_datasets.hpp"

namespace trireme::evaluate {

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

}  // namespace trireme::evaluate
