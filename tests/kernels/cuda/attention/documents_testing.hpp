// Documents that the tests of the attention kernels cut samples into.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/philox.hpp"

namespace trireme::kernels {

/// The first key of each of s queries where documents have lengths length(0), length(1) ...
template <typename Length>
std::vector<std::int32_t> cut_into_documents(std::int64_t s, const Length& length) {
  std::vector<std::int32_t> starts;
  for (std::int64_t i = 0; std::ssize(starts) < s; ++i) {
    const auto begin = static_cast<std::int32_t>(starts.size());
    starts.resize(std::min(s, begin + std::int64_t{length(i)}), begin);
  }
  return starts;
}

/// The same with lengths from 1 to 2 * `mean` - 1, by `seed`.
inline std::vector<std::int32_t> random_documents(std::int64_t s, std::int64_t mean,
                                                  std::uint64_t seed) {
  return cut_into_documents(s, [=](std::int64_t i) {
    const Philox4 words = philox({static_cast<std::uint32_t>(i), 0, 0, 0}, seed);
    return 1 + words.x % (2 * mean - 1);
  });
}

/// Samples of s tokens: without documents (empty), one document, one a token, ends where tiles
/// end, and others.
inline std::vector<std::vector<std::int32_t>> document_cases(std::int64_t s) {
  std::vector<std::vector<std::int32_t>> cases{{}};
  for (const std::int64_t length : {s, std::int64_t{1}, std::int64_t{64}, std::int64_t{127}})
    cases.push_back(cut_into_documents(s, [=](std::int64_t) { return length; }));
  for (const std::int64_t mean : {2, 20, 70, 200}) cases.push_back(random_documents(s, mean, mean));
  return cases;
}

}  // namespace trireme::kernels
