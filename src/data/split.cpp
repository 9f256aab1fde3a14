#include "data/split.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>

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

}  // namespace trireme::data
