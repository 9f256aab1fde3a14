// The pairs of queries and keys that a walk over the tiles of attention meets; tests walk as the
// kernels do.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cuda/attention/tiles.hpp"

namespace trireme::kernels::cuda {

/// The first key of each query of a sample; none where it has no documents.
using Starts = std::vector<std::int32_t>;

/// The pairs of a query and a key of a sample of s tokens, and how often a walk has met each.
class MetPairs {
 public:
  /// `starts` must outlive this.
  MetPairs(int s, bool causal, const Starts& starts)
      : first_keys{starts.empty() ? nullptr : starts.data(), s},
        s_(s),
        causal_(causal),
        met_(s * s) {}

  const FirstKeys first_keys;

  /// Whether `query` attends to `key`.
  bool attend(int query, int key) const {
    return attends(query, key, s_, causal_) && !first_keys.hide(query, key);
  }

  /// The walk meets a pair, unmasked. Queries behind the sequence are not counted.
  void meet(int query, int key) {
    if (!attend(query, key) && wrong_.empty()) wrong_ = fmt::format("{}, {}", query, key);
    if (query < s_) ++met_[query * s_ + key];
  }

  /// Expects that all pairs that attend, and no others, were met, each once.
  void expect_each_once() const {
    ASSERT_EQ(wrong_, "") << "of " << s_ << " does not attend";
    for (int query = 0; query < s_; ++query)
      for (int key = 0; key < s_; ++key)
        ASSERT_EQ(met_[query * s_ + key], attend(query, key))
            << query << ", " << key << " of " << s_;
  }

 private:
  const int s_;
  const bool causal_;
  std::vector<int> met_;
  std::string wrong_;  ///< the first pair that was met and does not attend
};

}  // namespace trireme::kernels::cuda
