// The BERT samples of Megatron-LM's first release (2019, data_utils/datasets.py): a random place of
// a random document, and as its second segment what follows or, half of the time, a random place of
// another document (next sentence).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "data/bert/python_random.hpp"
#include "data/bert/sample.hpp"
#include "data/indexed_dataset.hpp"
#include "data/split.hpp"

namespace trireme::data {

/// Documents of one dataset; its sequences are sentences.
struct SentenceDocuments {
  std::shared_ptr<const IndexedDataset> dataset;
  SequenceRange documents;
};

/// What the samples of a split depend on.
struct FirstReleaseConfig {
  std::vector<SentenceDocuments> corpora;  ///< one after the other
  std::optional<std::int64_t> samples;     ///< absent: n (n - 1) for n documents, as it was
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
