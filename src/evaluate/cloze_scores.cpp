#include "evaluate/cloze_scores.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

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

}  // namespace trireme::evaluate
