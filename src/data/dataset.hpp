// A dataset for training and evaluation: numbered samples of named integer tensors.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace trireme::data {

/// The label of a position that the loss ignores.
inline constexpr std::int32_t kIgnoredLabel = -1;

/// One tensor of a sample.
struct Field {
  std::string name;          ///< of field::, where the model knows it
  std::int64_t size = 1;     ///< elements per sample
  std::int32_t padding = 0;  ///< each element of a sample past the dataset's end

  bool operator==(const Field&) const = default;
};

/// The names that models read. A dataset may have others, which are batched alike.
namespace field {
inline constexpr const char* kTokens = "tokens";  ///< [sequence] token ids
inline constexpr const char* kLabels = "labels";  ///< [sequence] ids, or kIgnoredLabel
inline constexpr const char* kTokenTypes =
    "token_types";                                  ///< [sequence] 0: first sentence, 1: second
inline constexpr const char* kLengths = "lengths";  ///< [1] tokens before the padding
inline constexpr const char* kSentenceLabels = "sentence_labels";  ///< [1] 0 or 1, or kIgnoredLabel
}  // namespace field

/// Numbered samples. Immutable: several threads may read concurrently.
class Dataset {
 public:
  virtual ~Dataset() = default;

  /// Number of samples.
  virtual std::int64_t samples() const = 0;

  /// The tensors of a sample: the same for every sample. The names differ.
  virtual const std::vector<Field>& fields() const = 0;

  /// Writes sample number `sample`, 0 <= sample < samples(): tensor i to tensors[i]
  /// [fields()[i].size]. Depends on `sample` alone, never on what was read before. Throws DataError
  /// for bad data, which it names, and IoError.
  virtual void read(std::int64_t sample,
                    std::span<const std::span<std::int32_t>> tensors) const = 0;

  /// Throws IoError that names the first file that was changed since the dataset was opened.
  virtual void require_unchanged() const = 0;
};

}  // namespace trireme::data
