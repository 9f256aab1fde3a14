#include "evaluate/scores.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <unordered_map>
#include <vector>

#include "core/text.hpp"
#include "data/dataset.hpp"

namespace trireme::evaluate {
namespace {

constexpr double kNone = -std::numeric_limits<double>::infinity();

}  // namespace

ClozeScores::ClozeScores(const ClozeDataset& dataset, Want want) : dataset_(dataset), want_(want) {
  std::size_t targets = 0;
  for (const ClozeItem& item : dataset.items()) {
    offsets_.push_back(targets);
    targets += item.target.size();
  }
  log_probability_.assign(targets, kNone);
  if (want_ != Want::best_tokens) return;
  logit_.assign(targets, kNone);
  id_.assign(targets, 0.0);
}

void ClozeScores::add(const data::Batch& batch, std::int64_t first_sample,
                      const ScoredTokens& tokens) {
  const auto labels = batch.tensor(data::field::kLabels);
  const std::int64_t samples = batch.samples();
  const std::int64_t sequence = std::ssize(labels) / samples;
  const std::int64_t end = tokens.first + std::ssize(tokens.log_probabilities);
  for (std::int64_t j = 0; j < samples; ++j) {
    if (first_sample + j >= dataset_.samples()) return;
    std::size_t target = offsets_[first_sample + j];
    for (std::int64_t i = 0; i < sequence; ++i) {
      const std::int64_t token = i * samples + j;
      if (labels[token] == data::kIgnoredLabel) continue;
      const std::size_t at = target++;
      if (token < tokens.first || token >= end) continue;
      log_probability_[at] = tokens.log_probabilities[token - tokens.first];
      if (want_ != Want::best_tokens) continue;
      const LocalLogits local = tokens.logits(token);
      const auto best = std::ranges::max_element(local.values);
      if (best == local.values.end()) continue;
      logit_[at] = *best;
      id_[at] = static_cast<double>(local.first_id + (best - local.values.begin()));
    }
  }
}

void ClozeScores::combine(const std::function<void(double*, std::size_t)>& max) {
  max(log_probability_.data(), log_probability_.size());
  if (want_ != Want::best_tokens) return;
  const std::vector<double> mine = logit_;
  max(logit_.data(), logit_.size());
  // The lowest of the ids that have the largest logit: as a maximum of their negatives.
  for (std::size_t i = 0; i < id_.size(); ++i) id_[i] = mine[i] == logit_[i] ? -id_[i] : kNone;
  max(id_.data(), id_.size());
  for (double& id : id_) id = -id;
}

std::span<const double> ClozeScores::of_item(const std::vector<double>& values,
                                             std::int64_t item) const {
  return std::span(values).subspan(offsets_[item], dataset_.items()[item].target.size());
}

double ClozeScores::log_probability(std::int64_t item) const {
  const auto values = of_item(log_probability_, item);
  return std::accumulate(values.begin(), values.end(), 0.0);
}

bool ClozeScores::is_correct(std::int64_t item) const {
  return std::ranges::equal(dataset_.items()[item].target, of_item(id_, item),
                            [](std::int32_t wanted, double found) { return wanted == found; });
}

std::int64_t ClozeScores::correct() const {
  std::int64_t correct = 0;
  for (std::int64_t item = 0; item < dataset_.samples(); ++item) correct += is_correct(item);
  return correct;
}

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
