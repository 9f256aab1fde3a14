#include "evaluate/ngram.hpp"

#include <cmath>
#include <unordered_map>
#include <vector>

#include "core/text.hpp"
#include "data/batch.hpp"

namespace trireme::evaluate {
namespace {

/// Calls `visit(previous, token)` for every label of the dataset that counts; `what` is the work.
template <typename Visit>
void for_each_pair(const data::Dataset& dataset, const char* what, std::FILE* progress,
                   Visit&& visit) {
  Progress meter(what, "sample", static_cast<double>(dataset.samples()), progress);
  data::Batch sample;
  sample.resize(dataset.fields(), 1);
  const auto tokens = sample.tensor(data::field::kTokens);
  const auto labels = sample.tensor(data::field::kLabels);
  for (std::int64_t number = 0; number < dataset.samples(); ++number) {
    sample.read(dataset, number, 0);
    for (std::size_t i = 0; i < labels.size(); ++i)
      if (labels[i] != data::kIgnoredLabel) visit(tokens[i], labels[i]);
    meter.update(static_cast<double>(number + 1));
  }
}

}  // namespace

NgramLoss ngram_loss(const data::Dataset& train, const data::Dataset& held_out, std::int64_t vocab,
                     std::FILE* progress) {
  std::vector<double> counts(vocab, 0.0), contexts(vocab, 0.0), followers(vocab, 0.0);
  std::unordered_map<std::uint64_t, double> pairs;
  double total = 0.0;
  const auto pair_key = [&](std::int32_t a, std::int32_t b) {
    return static_cast<std::uint64_t>(a) * vocab + b;
  };
  for_each_pair(train, "counting", progress, [&](std::int32_t a, std::int32_t b) {
    ++total;
    ++counts[b];
    ++contexts[a];
    if (++pairs[pair_key(a, b)] == 1.0) ++followers[a];
  });

  NgramLoss loss;
  for_each_pair(held_out, "scoring", progress, [&](std::int32_t a, std::int32_t b) {
    const double unigram = (counts[b] + 1.0) / (total + static_cast<double>(vocab));
    const auto found = pairs.find(pair_key(a, b));
    const double pair = found == pairs.end() ? 0.0 : found->second;
    const double weight = contexts[a] + followers[a];
    const double bigram = weight > 0.0 ? (pair + followers[a] * unigram) / weight : unigram;
    loss.unigram -= std::log(unigram);
    loss.bigram -= std::log(bigram);
    ++loss.tokens;
  });
  if (loss.tokens > 0) {
    loss.unigram /= static_cast<double>(loss.tokens);
    loss.bigram /= static_cast<double>(loss.tokens);
  }
  return loss;
}

}  // namespace trireme::evaluate
