// Compiled without fused multiply-adds: which dataset lags most is often a matter of the last bit.
#include "data/indexed_dataset.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/error.hpp"

namespace trireme::data {
namespace {

constexpr std::array<std::string_view, 3> kNames = {"train", "valid", "test"};

double parse_weight(std::string_view word, std::string_view whole) {
  double value = 0;
  const auto [end, error] =
      std::from_chars(word.data(), word.data() + word.size(), value, std::chars_format::fixed);
  if (error != std::errc{} || end != word.data() + word.size())
    throw DeckError("data.split = '{}': '{}' is not a weight; write e.g. 969,30,1", whole, word);
  return value;
}

}  // namespace

std::string_view name_of(Split split) { return kNames[static_cast<std::size_t>(split)]; }

Split parse_split(std::string_view text) {
  for (std::size_t i = 0; i < kNames.size(); ++i)
    if (kNames[i] == text) return static_cast<Split>(i);
  throw UsageError("'{}' is not a part of a dataset: write train, valid or test", text);
}

std::string to_text(std::span<const double> weights) {
  std::string text;
  for (const double weight : weights) text += fmt::format("{}{}", text.empty() ? "" : ",", weight);
  return text;
}

SplitWeights normalize_weights(std::span<const double> weights) {
  const auto text = [&] { return to_text(weights); };
  SplitWeights fractions{};
  if (weights.size() > fractions.size())
    throw DeckError("data.split = {} has more than three weights (train, valid, test)", text());
  for (const double weight : weights)
    if (!(weight >= 0) || !std::isfinite(weight))
      throw DeckError("data.split = {}: {} is not a weight; write e.g. 969,30,1", text(), weight);
  std::copy(weights.begin(), weights.end(), fractions.begin());
  const double sum = fractions[0] + fractions[1] + fractions[2];
  if (!(sum > 0) || !std::isfinite(sum))
    throw DeckError("data.split = {} gives no part any weight; write e.g. 969,30,1", text());
  for (double& fraction : fractions) fraction /= sum;
  return fractions;
}

std::vector<double> parse_split_weights(std::string_view text) {
  constexpr std::string_view kSeparators = ",/ \t";
  std::vector<double> weights;
  for (std::size_t at = text.find_first_not_of(kSeparators); at != std::string_view::npos;) {
    const std::size_t end = std::min(text.find_first_of(kSeparators, at), text.size());
    weights.push_back(parse_weight(text.substr(at, end - at), text));
    at = text.find_first_not_of(kSeparators, end);
  }
  return weights;
}

SequenceRange split_range(const SplitWeights& weights, Split split, std::int64_t sequences) {
  // Megatron-LM adds the weights up from the left before it multiplies: 0.8 + 0.15 must stay
  // 0.9500000000000001. nearbyint rounds half to even, as Python's round does.
  double low = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(split); ++i) low += weights[i];
  const double high = low + weights[static_cast<std::size_t>(split)];
  const auto boundary = [&](double fraction) {
    return std::min(sequences, static_cast<std::int64_t>(
                                   std::nearbyint(fraction * static_cast<double>(sequences))));
  };
  return {boundary(low), boundary(high)};
}

std::int64_t samples_wanted(Split split, const RunLength& run) {
  if (split == Split::train) return run.train_samples;
  return (split == Split::valid ? run.evaluations + 1 : 1) * run.evaluation_samples;
}

namespace {

// Megatron-LM builds each dataset for this much more than its share.
constexpr double kSurplus = 0.005;

// As numpy.sum adds doubles: eight running sums, blocks of at most 128, halves above that.
double numpy_sum(std::span<const double> values) {
  constexpr std::size_t kLanes = 8, kBlock = 128;
  const std::size_t size = values.size();
  if (size < kLanes) return std::accumulate(values.begin(), values.end(), 0.0);
  if (size > kBlock) {
    const std::size_t half = size / 2 - size / 2 % kLanes;
    return numpy_sum(values.first(half)) + numpy_sum(values.subspan(half));
  }
  std::array<double, kLanes> sums{};
  std::copy_n(values.begin(), kLanes, sums.begin());
  std::size_t at = kLanes;
  for (; at + kLanes <= size; at += kLanes)
    for (std::size_t lane = 0; lane < kLanes; ++lane) sums[lane] += values[at + lane];
  const double sum =
      ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
  return std::accumulate(values.begin() + at, values.end(), sum);
}

// Takes `samples` samples; dataset d may give at most limits[d].
BlendIndex mix(std::span<const double> weights, std::span<const std::int64_t> limits,
               std::int64_t samples) {
  std::vector<std::int16_t> dataset(static_cast<std::size_t>(samples));
  std::vector<std::int64_t> sample(dataset.size()), taken(weights.size(), 0);
  for (std::size_t i = 0; i < dataset.size(); ++i) {
    const double position = std::max(static_cast<double>(i), 1.0);
    std::size_t furthest = 0;
    double most = -std::numeric_limits<double>::infinity();
    for (std::size_t d = 0; d < weights.size(); ++d) {
      const double lag = weights[d] * position - static_cast<double>(taken[d]);
      if (taken[d] == limits[d] || lag <= most) continue;
      most = lag;
      furthest = d;
    }
    dataset[i] = static_cast<std::int16_t>(furthest);
    sample[i] = taken[furthest]++;
  }
  return {NpyArray(std::move(dataset)), NpyArray(std::move(sample))};
}

}  // namespace

std::vector<double> normalize_blend(std::span<const double> weights) {
  if (weights.size() >= std::numeric_limits<std::int16_t>::max())
    throw DeckError("a blend of {} datasets: at most {} can be mixed", weights.size(),
                    std::numeric_limits<std::int16_t>::max() - 1);
  const double sum = numpy_sum(weights);
  std::vector<double> normalized(weights.begin(), weights.end());
  for (double& weight : normalized) {
    if (!(weight > 0) || !std::isfinite(sum))
      throw DeckError("a blend with the weight {}: weights are above 0", weight);
    weight /= sum;
  }
  return normalized;
}

std::int64_t blend_share(double weight, std::int64_t samples) {
  return static_cast<std::int64_t>(std::ceil(static_cast<double>(samples) * weight));
}

std::int64_t share_to_build(double weight, std::int64_t samples) {
  const auto share = static_cast<double>(blend_share(weight, samples));
  return static_cast<std::int64_t>(std::ceil(share * (1 + kSurplus)));
}

BlendIndex build_blend_index(std::span<const double> weights, std::int64_t samples) {
  std::int64_t total = 0;
  for (const double weight : weights) total += blend_share(weight, samples);
  const std::vector<std::int64_t> endless(weights.size(), std::numeric_limits<std::int64_t>::max());
  // Megatron-LM normalises once more before it mixes, which may change last bits.
  return mix(normalize_blend(weights), endless, total);
}

BlendIndex build_exhaustive_blend_index(std::span<const std::int64_t> sizes, std::int64_t samples) {
  const std::int64_t total = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  std::vector<double> weights(sizes.begin(), sizes.end());
  return mix(normalize_blend(weights), sizes, std::min(samples, total));
}

std::int64_t check_blend_index(const BlendIndex& index, std::span<const std::int64_t> sizes,
                               std::int64_t wanted, const std::string& name) {
  if (index.dataset.shape().size() != 1 || index.sample.shape() != index.dataset.shape())
    throw DataError("{}: expected a dataset index and a dataset sample index of one length", name);
  std::vector<std::int64_t> taken(sizes.size(), 0);
  std::int64_t held = index.samples();
  for (std::int64_t i = 0; i < index.samples(); ++i) {
    const std::int64_t dataset = index.dataset(i), sample = index.sample(i);
    const bool known = dataset >= 0 && dataset < std::ssize(sizes);
    if (!known || sample != taken[dataset]++)
      throw DataError("{}: entry {} is sample {} of dataset {}: not the next one of {} datasets",
                      name, i, sample, dataset, sizes.size());
    if (sample < sizes[dataset]) continue;
    if (i < wanted)
      throw DataError("{}: the blend takes more samples of dataset {} than the {} it has", name,
                      dataset, sizes[dataset]);
    held = std::min(held, i);
  }
  return held;
}

}  // namespace trireme::data
