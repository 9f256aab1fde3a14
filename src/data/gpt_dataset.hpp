// Samples of a GPT run: the place where token ids, indices and the loss mask meet.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "data/gpt_index.hpp"
#include "data/indexed_dataset.hpp"

namespace trireme::data {

/// The label of a position that the loss leaves out.
inline constexpr std::int32_t kIgnoredLabel = -1;

/// What a sample looks like.
struct SampleFormat {
  std::int64_t sequence = 0;        ///< tokens the model sees
  std::int64_t vocab = 0;           ///< ids must be below
  std::optional<std::int32_t> eod;  ///< the id that ends a document; needed when not eod_loss
  bool eod_loss = true;             ///< false: positions whose input is `eod` have no label
};

/// One part of a dataset as a run sees it: numbered samples. Immutable and cheap to copy.
class GptDataset {
 public:
  /// Throws DeckError when format.eod_loss is false and there is no format.eod.
  GptDataset(std::shared_ptr<const IndexedDataset> tokens, GptIndex index, SampleFormat format);

  /// Number of samples: at least as many as the run wants.
  std::int64_t samples() const { return index_.samples(); }
  const SampleFormat& format() const { return format_; }
  const GptIndex& index() const { return index_; }

  /// The tokens of a sample, 0 <= sample < samples(): tokens [sequence + 1]. Throws DataError that
  /// names the id, its document and the vocabulary when an id is negative or not below
  /// format().vocab.
  void read(std::int64_t sample, std::span<std::int32_t> tokens) const;

  /// A sample as training uses it: inputs [sequence] are all tokens but the last, labels [sequence]
  /// all but the first, kIgnoredLabel where the loss must not look. Throws as read() does.
  void fill(std::int64_t sample, std::span<std::int32_t> inputs,
            std::span<std::int32_t> labels) const;

 private:
  void check_ids(std::int64_t sequence, std::int64_t offset,
                 std::span<const std::int32_t> tokens) const;

  std::shared_ptr<const IndexedDataset> tokens_;
  GptIndex index_;
  SampleFormat format_;
};

}  // namespace trireme::data
