// Megatron-LM's blend: which dataset each sample of several mixed ones comes from.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/numpy.hpp"

namespace trireme::data {

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

/// Mixes by normalised weights: sample i comes from the dataset that lags most behind its weight
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
