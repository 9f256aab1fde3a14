#include "generate/sampling.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "core/error.hpp"

namespace trireme::generate {
namespace {

/// The ids that top-k leaves; the most likely first when a filter needs that order.
std::vector<std::int32_t> candidates(std::span<const double> logits, const Sampling& sampling) {
  std::vector<std::int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  if (sampling.top_k == 0 && sampling.top_p == 1.0) return ids;
  const auto size = static_cast<std::int64_t>(ids.size());
  const std::int64_t kept = sampling.top_k == 0 ? size : std::min(sampling.top_k, size);
  std::partial_sort(ids.begin(), ids.begin() + kept, ids.end(),
                    [&](std::int32_t a, std::int32_t b) {
                      return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
                    });
  ids.resize(kept);
  return ids;
}

/// How many of `weights`, largest first, top-p keeps: a token stays while those before it do not
/// exceed the threshold, so the one that crosses it stays too.
std::size_t top_p_count(const std::vector<double>& weights, double top_p) {
  const double threshold = top_p * std::accumulate(weights.begin(), weights.end(), 0.0);
  std::size_t count = 0;
  for (double sum = 0.0; count < weights.size() && sum <= threshold; ++count) sum += weights[count];
  return count;
}

}  // namespace

void check_sampling(const Sampling& sampling) {
  if (!(sampling.temperature > 0.0 && std::isfinite(sampling.temperature)))
    throw UsageError(
        "--temperature {}: expected a number above 0 (--greedy takes the most likely "
        "token)",
        sampling.temperature);
  if (sampling.top_k < 0)
    throw UsageError("--top-k {}: expected 0 (no limit) or more", sampling.top_k);
  if (!(sampling.top_p > 0.0 && sampling.top_p <= 1.0))
    throw UsageError("--top-p {}: expected a number above 0 and at most 1 (no limit)",
                     sampling.top_p);
}

std::int32_t choose(std::span<const double> logits, const Sampling& sampling, double uniform) {
  TRIREME_CHECK(!logits.empty(), "there is no token to choose");
  if (!std::all_of(logits.begin(), logits.end(), [](double x) { return std::isfinite(x); }))
    throw DataError("the model's logits are not finite: its training has diverged");
  const auto best = std::max_element(logits.begin(), logits.end());
  if (sampling.greedy) return static_cast<std::int32_t>(best - logits.begin());

  std::vector<std::int32_t> ids = candidates(logits, sampling);
  std::vector<double> weights(ids.size());
  std::transform(ids.begin(), ids.end(), weights.begin(), [&](std::int32_t id) {
    return std::exp((logits[id] - *best) / sampling.temperature);
  });
  if (sampling.top_p < 1.0) weights.resize(top_p_count(weights, sampling.top_p));

  const double target = uniform * std::accumulate(weights.begin(), weights.end(), 0.0);
  std::int32_t chosen = 0;
  double sum = 0.0;
  for (std::size_t i = 0; i < weights.size() && sum <= target; ++i) {
    if (weights[i] == 0.0) continue;
    chosen = ids[i];
    sum += weights[i];
  }
  return chosen;
}

}  // namespace trireme::generate
