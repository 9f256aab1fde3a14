// Texts as datasets for evaluation: windows over a stream of tokens, and contexts with the tokens
// that should follow (cloze tasks).
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "data/dataset.hpp"
#include "tokenizer/tokenizer.hpp"

namespace trireme::evaluate {

/// Texts that cannot be scored: the message names no file, which only the caller knows.
class UnscorableText : public DataError {
 public:
  using DataError::DataError;
};

/// Windows of `sequence` tokens over a stream of N tokens, `step` apart. Every token but the first
/// is the label of exactly one window: window 0 has `sequence` labels, each other one the last
/// `step`, which so have at least sequence - step tokens of context. Source: Megatron-LM,
/// tasks/zeroshot_gpt2 (--overlapping-eval), without its last windows, which score nothing.
class WindowDataset final : public data::Dataset {
 public:
  /// `padding` fills the last window. Throws UsageError unless 1 <= step <= sequence,
  /// UnscorableText for fewer than two tokens.
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
  /// UnscorableText where there is no item, or one has a target of another length.
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
/// stripped. The first `limit` lines. Throws IoError and DataError that names the line.
std::vector<ClozeItem> read_lambada(const std::string& path, const tokenizer::Tokenizer& tokenizer,
                                    bool strict,
                                    std::int64_t limit = std::numeric_limits<std::int64_t>::max());

/// The token ids of the documents in `path` (JSON lines with a "text", or *.txt: one document),
/// each followed by the end-of-document token where the tokenizer has one; reads no further
/// document once there are `enough`. Throws IoError and DataError.
std::vector<std::int32_t> read_documents(
    const std::string& path, const tokenizer::Tokenizer& tokenizer,
    std::int64_t enough = std::numeric_limits<std::int64_t>::max());

/// The first samples of a dataset, which must outlive this.
class FirstSamples final : public data::Dataset {
 public:
  FirstSamples(const data::Dataset& whole, std::int64_t samples)
      : whole_(whole), samples_(std::min(whole.samples(), samples)) {}

  std::int64_t samples() const override { return samples_; }
  const std::vector<data::Field>& fields() const override { return whole_.fields(); }
  void read(std::int64_t sample, std::span<const std::span<std::int32_t>> tensors) const override {
    whole_.read(sample, tensors);
  }
  void require_unchanged() const override { whole_.require_unchanged(); }

 private:
  const data::Dataset& whole_;
  std::int64_t samples_;
};

// Text of tokenized corpora as people write it. Source: Megatron-LM, tasks/zeroshot_gpt2.

/// Undoes the tokenization of WikiText: " @-@ ", spaces before punctuation and within brackets and
/// quotes, headings. The replacements and their order are Megatron-LM's wikitext_detokenizer().
std::string detokenize_wikitext(std::string text);

/// Undoes the tokenization of the Penn Treebank: Megatron-LM's ptb_detokenizer().
std::string detokenize_ptb(std::string text);

/// The detokenizer that Megatron-LM takes for a file: by its path, "ptb" or else WikiText's.
std::string detokenize(std::string text, const std::filesystem::path& path);

/// Python's str.replace().
std::string replace_all(const std::string& text, std::string_view from, std::string_view to);

/// Python's str.strip(): without the white space at both ends.
std::string_view strip_space(std::string_view text);

/// Where the last word of `text`, which does not end with white space, begins: what follows the
/// last white space; text.size() for an empty text.
std::size_t last_word(std::string_view text);

/// Words of `text` as the word-level perplexity counts them: what single spaces separate, after
/// white space at both ends is removed.
std::int64_t count_words(std::string_view text);

}  // namespace trireme::evaluate
