// Samples of a GPT run: the place where token ids, indices and the loss mask meet.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/blend_index.hpp"
#include "data/dataset.hpp"
#include "data/gpt_index.hpp"
#include "data/indexed_dataset.hpp"

namespace trireme::data {

/// What a sample looks like.
struct SampleFormat {
  std::int64_t sequence = 0;        ///< tokens the model sees
  std::int64_t vocab = 0;           ///< ids must be below
  std::optional<std::int32_t> eod;  ///< the id that ends a document; needed when not eod_loss
  bool eod_loss = true;             ///< false: positions whose input is `eod` have no label
};

/// Tokens, and the index that cuts samples from them. Immutable and cheap to copy.
struct GptCorpus {
  std::shared_ptr<const IndexedDataset> tokens;
  GptIndex index;
};

/// One part of a run's data: the numbered samples of a corpus, or of several that are mixed.
/// Immutable and cheap to copy.
class GptDataset final : public Dataset {
 public:
  /// Throws DeckError when format.eod_loss is false and there is no format.eod.
  GptDataset(GptCorpus corpus, SampleFormat format);

  /// Sample i is the one of `corpora` that `blend` says, as far as they hold it. Throws like the
  /// above, and DataError that begins with `name` when the blend does not fit the corpora or they
  /// do not hold its first `wanted` samples (check_blend_index).
  GptDataset(std::vector<GptCorpus> corpora, BlendIndex blend, std::int64_t wanted,
             SampleFormat format, const std::string& name);

  /// Number of samples: at least as many as the run wants.
  std::int64_t samples() const override { return samples_; }
  /// tokens and labels.
  const std::vector<Field>& fields() const override { return fields_; }
  const SampleFormat& format() const { return format_; }
  const std::vector<GptCorpus>& corpora() const { return corpora_; }
  /// How the corpora are mixed; nothing when there is one alone.
  const std::optional<BlendIndex>& blend() const { return blend_; }

  /// The tokens of a sample, 0 <= sample < samples(): tokens [sequence + 1]. Throws DataError that
  /// names the id, its document and the vocabulary when an id is negative or not below
  /// format().vocab.
  void read_tokens(std::int64_t sample, std::span<std::int32_t> tokens) const;

  /// A sample as training uses it: tokens [sequence] are all of read_tokens() but the last, labels
  /// [sequence] all but the first, kIgnoredLabel where the loss must not look. Throws likewise.
  void read(std::int64_t sample, std::span<const std::span<std::int32_t>> tensors) const override;

  void require_unchanged() const override;

 private:
  void check_ids(const IndexedDataset& corpus, std::int64_t sequence, std::int64_t offset,
                 std::span<const std::int32_t> tokens) const;

  std::vector<GptCorpus> corpora_;
  std::optional<BlendIndex> blend_;
  std::int64_t samples_ = 0;
  SampleFormat format_;
  std::vector<Field> fields_;
};

}  // namespace trireme::data
