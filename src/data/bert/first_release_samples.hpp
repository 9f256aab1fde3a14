// The BERT samples of Megatron-LM's first release (2019, data_utils/datasets.py): a random place of
// a random document, and as its second segment what follows or, half of the time, a random place of
// another document (next sentence).
#pragma once

#include <bit>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "data/bert/sample.hpp"
#include "data/indexed_dataset.hpp"
#include "data/split.hpp"

namespace trireme::data {

/// random.Random(seed) for seed >= 0: MT19937 seeded by init_by_array.
class PythonRandom {
 public:
  explicit PythonRandom(std::uint64_t seed) {
    InitByArray words{seed};
    generator_.seed(words);
  }

  /// random(): uniform in [0, 1) with 53 bits.
  double uniform() {
    const std::uint32_t high = draw() >> 5, low = draw() >> 6;
    return (high * 67108864.0 + low) / 9007199254740992.0;
  }

  /// _randbelow(n): uniform in 0 .. n - 1, 1 <= n < 2^32. Draws also when n is 1.
  std::uint64_t below(std::uint64_t n) {
    const int bits = std::bit_width(n);
    std::uint64_t value;
    do {
      value = draw() >> (32 - bits);
    } while (value >= n);
    return value;
  }

  /// randint(low, high): both included.
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(below(static_cast<std::uint64_t>(high - low) + 1));
  }

  /// shuffle() of a list.
  template <typename T>
  void shuffle(std::span<T> values) {
    for (std::size_t i = values.size(); i-- > 1;) std::swap(values[i], values[below(i + 1)]);
  }

 private:
  /// The seed sequence that makes std::mt19937::seed() give init_by_array's state. Source:
  /// Matsumoto and Nishimura, mt19937ar.c (2002).
  struct InitByArray {
    using result_type = std::uint32_t;
    std::uint64_t seed;

    template <typename Iterator>
    void generate(Iterator begin, Iterator end);
  };

  std::uint32_t draw() { return static_cast<std::uint32_t>(generator_()); }

  std::mt19937 generator_;
};

template <typename Iterator>
void PythonRandom::InitByArray::generate(Iterator begin, Iterator end) {
  const auto size = static_cast<std::uint32_t>(end - begin);
  const auto at = [begin](std::uint32_t i) { return static_cast<std::uint32_t>(begin[i]); };
  const std::uint32_t key[2] = {static_cast<std::uint32_t>(seed),
                                static_cast<std::uint32_t>(seed >> 32)};
  const std::uint32_t keys = key[1] ? 2 : 1;
  begin[0] = 19650218u;
  for (std::uint32_t i = 1; i < size; ++i)
    begin[i] = 1812433253u * (at(i - 1) ^ at(i - 1) >> 30) + i;
  std::uint32_t i = 1;
  const auto next = [&](std::uint32_t value) {
    begin[i] = value;
    if (++i < size) return;
    begin[0] = at(size - 1);
    i = 1;
  };
  for (std::uint32_t k = 0; k < size; ++k)
    next((at(i) ^ (at(i - 1) ^ at(i - 1) >> 30) * 1664525u) + key[k % keys] + k % keys);
  for (std::uint32_t k = 1; k < size; ++k)
    next((at(i) ^ (at(i - 1) ^ at(i - 1) >> 30) * 1566083941u) - i);
  begin[0] = 0x80000000u;
}

/// The masking of the first release: single pieces, drawn without replacement, min(max_predictions,
/// masked_tokens()) of them; 80 % [MASK], 10 % the same, 10 % a random id. Draws what Python's
/// random.Random would.
void mask_tokens(const BertFormat& format, PythonRandom& random, BertSample& sample);

/// Where data.bert.max_predictions is not given, the first release's: mask_probability * sequence
/// rounded up to a multiple of 10.
std::int64_t first_release_predictions(const BertFormat& format);

/// Documents of one dataset; its sequences are sentences.
struct SentenceDocuments {
  std::shared_ptr<const IndexedDataset> dataset;
  SequenceRange documents;
};

/// What the samples of a split depend on.
struct FirstReleaseConfig {
  std::vector<SentenceDocuments> corpora;  ///< one after the other
  std::optional<std::int64_t> samples;     ///< absent: one for each document
  double short_probability = 0.01;         ///< share of samples with a random, shorter target
  std::int64_t seed = 1234;                ///< data.seed
  BertFormat format;
};

/// Sample i draws what random.Random(seed + i) would: with seed 0 it is sample i of the first
/// release, except that the second segment's type is always 1. There it was 0 where the segment
/// follows the first one, so that the types told the answer of the sentence task.
class FirstReleaseSamples : public BertDataset {
 public:
  /// Throws DeckError for values outside their range, and unless two documents have tokens.
  explicit FirstReleaseSamples(FirstReleaseConfig config);

  std::int64_t samples() const override { return samples_; }
  void require_unchanged() const override;

 private:
  void fill(std::int64_t i, BertSample& sample) const override;

  struct Sentences {
    const IndexedDataset* dataset;
    std::int64_t first, last;
    std::int64_t size() const { return last - first; }
  };
  using Tokens = std::vector<std::int32_t>;

  Sentences document(std::int64_t index) const;
  std::int64_t random_document(PythonRandom& random, std::int64_t other_than) const;
  Tokens read_sentence(const Sentences& document, std::int64_t which) const;
  bool draw_pair(PythonRandom& random, std::int64_t target, SegmentPair& pair) const;

  FirstReleaseConfig config_;
  std::vector<std::int64_t> first_document_;  ///< [corpora + 1] among the documents of all
  std::int64_t samples_ = 0;
};

}  // namespace trireme::data
