// Texts as datasets for evaluation: windows over a stream of tokens, and contexts with the tokens
// that should follow (cloze tasks).
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "data/batch.hpp"
#include "tokenizer/tokenizer.hpp"

namespace trireme::evaluate {

/// Windows of `sequence` tokens over a stream of N tokens, `step` apart. Every token but the first
/// is the label of exactly one window: window 0 has `sequence` labels, each other one the last
/// `step`, which so have at least sequence - step tokens of context. Source: Megatron-LM,
/// tasks/zeroshot_gpt2 (--overlapping-eval), without its last windows, which score nothing.
class WindowDataset final : public data::Dataset {
 public:
  /// `padding` fills the last window. Throws UsageError unless 1 <= step <= sequence, DataError
  /// for fewer than two tokens.
  WindowDataset(std::vector<std::int32_t> tokens, std::int64_t sequence, std::int64_t step,
                std::int32_t padding);

  std::int64_t samples() const override { return samples_; }
  const std::vector<data::Field>& fields() const override { return fields_; }
  void read(std::int64_t sample, std::span<const std::span<std::int32_t>> tensors) const override;
  void require_unchanged() const override {}
  /// Tokens of the stream.
  std::int64_t tokens() const { return std::ssize(tokens_); }

 private:
  std::vector<std::int32_t> tokens_;
  std::int64_t sequence_, step_, samples_ = 0;
  std::int32_t padding_;
  std::vector<data::Field> fields_;
};

/// A context and the tokens that should follow it.
struct ClozeItem {
  std::vector<std::int32_t> context, target;
};

/// One item a sample, padded at the end; its labels are the targets. Of an item longer than
/// `sequence` + 1 the first tokens of the context are dropped.
class ClozeDataset final : public data::Dataset {
 public:
  /// Every item has a target of 1 to `sequence` tokens; an empty context becomes `padding`. Throws
  /// DataError where there is no item, or one has a target of another length.
  ClozeDataset(std::vector<ClozeItem> items, std::int64_t sequence, std::int32_t padding);

  std::int64_t samples() const override { return std::ssize(items_); }
  const std::vector<data::Field>& fields() const override { return fields_; }
  void read(std::int64_t sample, std::span<const std::span<std::int32_t>> tensors) const override;
  void require_unchanged() const override {}
  const std::vector<ClozeItem>& items() const { return items_; }

 private:
  std::vector<ClozeItem> items_;
  std::int64_t sequence_;
  std::int32_t padding_;
  std::vector<data::Field> fields_;
};

/// LAMBADA's items of JSON lines with a "text" in `path`. The target is the last token of the text;
/// with `strict` all tokens of " " and its last word, and the context is the text before it,
/// stripped. Throws IoError and DataError that names the line.
std::vector<ClozeItem> read_lambada(const std::string& path, const tokenizer::Tokenizer& tokenizer,
                                    bool strict);

/// The token ids of all documents in `path` (JSON lines with a "text", or *.txt: one document),
/// each followed by the end-of-document token where the tokenizer has one. Throws IoError and
/// DataError.
std::vector<std::int32_t> read_documents(const std::string& path,
                                         const tokenizer::Tokenizer& tokenizer);

/// Logits of one token on one tensor rank: of the ids from `first_id` on.
struct LocalLogits {
  std::int64_t first_id = 0;
  std::vector<float> values;
};

/// The most likely token at every target, over all ranks: of equal logits the lower id.
class ClozeScores {
 public:
  explicit ClozeScores(const ClozeDataset& dataset);

  /// Takes a micro-batch that begins with sample `first_sample`; `logits` gives those of token k of
  /// the batch (Batch's memory layout) on this rank.
  void add(const data::Batch& batch, std::int64_t first_sample,
           const std::function<LocalLogits(std::int64_t)>& logits);

  /// Combines the ranks, each of which may have seen any part. `max` takes the maximum of each of
  /// `count` numbers over all ranks.
  void combine(const std::function<void(double* values, std::size_t count)>& max);

  /// Items all of whose targets are the most likely tokens; after combine().
  std::int64_t correct() const;

 private:
  const ClozeDataset& dataset_;
  std::vector<std::size_t> offsets_;  ///< of each item's first target in the vectors below
  std::vector<double> logit_, id_;
};

}  // namespace trireme::evaluate
