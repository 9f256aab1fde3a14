// Division of a dataset into train, valid and test parts, and how many samples a run takes of each.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/numpy.hpp"

namespace trireme::data {

/// The three parts of a dataset.
enum class Split { train = 0, valid = 1, test = 2 };

/// "train", "valid" or "test".
std::string_view name_of(Split split);

/// "train", "valid" or "test" read back; throws UsageError for anything else.
Split parse_split(std::string_view text);

/// Sequences [begin, end) of a dataset.
struct SequenceRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end - begin; }
  bool operator==(const SequenceRange&) const = default;
};

/// The weights of train, valid and test divided by their sum.
using SplitWeights = std::array<double, 3>;

/// Divides one to three weights, missing ones being 0, by their sum. Throws DeckError, naming
/// data.split, when there are more, when one is negative or not finite, or when all are 0.
SplitWeights normalize_weights(std::span<const double> weights);

/// Weights as a deck writes them: "969,30,1".
std::string to_text(std::span<const double> weights);

/// Reads "969,30,1": numbers separated by commas, slashes or spaces. Throws DeckError, naming
/// data.split, when a word is not a plain decimal number.
std::vector<double> parse_split_weights(std::string_view text);

/// The sequences of a part: boundaries are the running sums of the weights times `sequences`,
/// rounded half to even, as Megatron-LM does it.
SequenceRange split_range(const SplitWeights& weights, Split split, std::int64_t sequences);

/// How long a run trains and how often it evaluates.
struct RunLength {
  std::int64_t train_samples = 0;
  std::int64_t evaluations = 0;         ///< while it trains, those at the end not counted
  std::int64_t evaluation_samples = 0;  ///< of one evaluation
};

/// Samples that a run takes of a part: train: its own; valid: its evaluations and the one at the
/// end, even where that is the last of them, as in Megatron-LM; test: one evaluation.
std::int64_t samples_wanted(Split split, const RunLength& run);

// Megatron-LM's blend: which dataset each sample of several mixed ones comes from.

/// The weights divided by their sum, which is added up in numpy's order. Throws DeckError when one
/// is not above 0, and when there are more than a blend can hold (32766).
std::vector<double> normalize_blend(std::span<const double> weights);

/// Samples that a dataset of normalised weight `weight` gives to a blend of `samples`:
/// ceil(samples * weight).
std::int64_t blend_share(double weight, std::int64_t samples);

/// Samples that its index is built for: half a percent more than its share, rounded up.
std::int64_t share_to_build(double weight, std::int64_t samples);

/// Sample i of a blend is sample `sample`(i) of dataset `dataset`(i).
struct BlendIndex {
  NpyArray dataset;  ///< [samples] int16
  NpyArray sample;   ///< [samples] int64: 0, 1, 2, ... within each dataset

  std::int64_t samples() const { return dataset.rows(); }
};

/// Mixes by normalised weights: sample i comes from the dataset that is furthest below its weight
/// times i, the first of equals. As many samples as the datasets' shares of `samples` add up to.
BlendIndex build_blend_index(std::span<const double> weights, std::int64_t samples);

/// Mixes all samples of datasets of `sizes` samples, by the same rule with the sizes as weights
/// among those that are not yet used up; at most `samples` of them.
BlendIndex build_exhaustive_blend_index(std::span<const std::int64_t> sizes, std::int64_t samples);

/// Checks an index against the sizes of the datasets: that each sample is the next one of an
/// existing dataset, and that they hold the first `wanted` samples. Throws DataError that begins
/// with `name`. Returns how many samples they hold: every share is rounded up, so that an index is
/// longer than what is wanted, and the rest of it may take more of a dataset than its share.
std::int64_t check_blend_index(const BlendIndex& index, std::span<const std::int64_t> sizes,
                               std::int64_t wanted, const std::string& name);

}  // namespace trireme::data
