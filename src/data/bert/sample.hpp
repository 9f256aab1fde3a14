// BERT samples: a sample of two segments of tokens, some of which are masked; and the datasets
// of them, today's of Megatron-LM and those of its first release.
#pragma once

#include <bit>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "data/dataset.hpp"
#include "data/gpt/gpt_dataset.hpp"
#include "data/indexed_dataset.hpp"
#include "data/numpy.hpp"
#include "tokenizer/tokenizer.hpp"

namespace trireme::data {

/// What samples need to know of the tokenizer.
struct BertVocabulary {
  std::int32_t cls = 0, sep = 0, mask = 0, pad = 0;
  /// [ids] true where the piece continues a word, as "##ing" does. Its size is the number of ids
  /// from which random replacements are drawn. Megatron-LM since 2021 adds [BOS] and [EOS] to a
  /// vocabulary without them: its replacements are the same only where the file has both.
  std::vector<bool> continues_word;

  std::int64_t ids() const { return std::ssize(continues_word); }
};

/// That of a tokenizer. Throws DeckError, naming data.tokenizer, when it lacks one of the special
/// tokens.
BertVocabulary bert_vocabulary(const tokenizer::Tokenizer& tokenizer);

/// What a sample looks like.
struct BertFormat {
  std::int64_t sequence = 0;       ///< tokens the model sees, at least kMinBertSequence
  double mask_probability = 0.15;  ///< share of a sample's tokens that are predicted, in (0, 1)
  std::int64_t max_ngram = 3;      ///< words masked together: 1 .. max_ngram, kMaxBertNgram at most
  /// Tokens predicted in a sample at most; absent: as many as mask_probability gives.
  std::optional<std::int64_t> max_predictions;
  std::shared_ptr<const BertVocabulary> vocabulary;
};

/// [CLS], two [SEP] and a token of each segment.
inline constexpr std::int64_t kMinBertSequence = 5;
inline constexpr std::int64_t kMaxBertNgram = 7;

/// The tensors of one sample: what BertDataset::fields() names, in that order.
struct BertSample {
  explicit BertSample(std::span<const std::span<std::int32_t>> tensors);

  std::span<std::int32_t> tokens;  ///< [sequence] masked; padding from `length` on
  std::span<std::int32_t> types;   ///< [sequence] 0: first segment, 1: second; 0 from `length` on
  std::span<std::int32_t> labels;  ///< [sequence] the original id, or kIgnoredLabel where unmasked
  std::int32_t& length;            ///< tokens before the padding
  /// 1 where the second segment does not follow the first one: swapped (sentence order) or of
  /// another document (next sentence); 0 where it does; kIgnoredLabel for a single segment.
  std::int32_t& sentence_label;

  /// All padding, nothing predicted.
  void clear(std::int32_t pad);
};

/// Samples for BERT. A sample depends on its number and the configuration alone, so that layouts
/// and restarts agree.
class BertDataset : public Dataset {
 public:
  /// Tokens, token types and labels [sequence], length and sentence label [1].
  const std::vector<Field>& fields() const final { return fields_; }
  void read(std::int64_t sample, std::span<const std::span<std::int32_t>> tensors) const final;

 protected:
  /// Positions of samples past the end have the token `pad`.
  BertDataset(std::int64_t sequence, std::int32_t pad);
  /// Writes sample `i`, as read().
  virtual void fill(std::int64_t i, BertSample& sample) const = 0;

 private:
  std::vector<Field> fields_;
};

/// Throws DeckError, naming the key, for a sequence, probability, n-gram or number of predictions
/// outside its range, and for special ids outside the vocabulary.
void check_bert_format(const BertFormat& format);

/// Two segments that become a sample: first and second, the latter empty where the task
/// has no sentence pairs.
struct SegmentPair {
  std::vector<std::int32_t> a, b;
};

/// Removes tokens until the segments have `most` together: each time from the longer one (b when
/// equal), its first token when the next of `uniform()` in [0, 1) is below 0.5, else its last. A
/// token is removed from one end or the other, so this runs in the number of removed tokens.
template <typename Uniform>
void truncate_pair(SegmentPair& pair, std::int64_t most, Uniform&& uniform) {
  std::int64_t begin[2] = {0, 0}, end[2] = {std::ssize(pair.a), std::ssize(pair.b)};
  while (end[0] - begin[0] + end[1] - begin[1] > most) {
    const int longer = end[0] - begin[0] > end[1] - begin[1] ? 0 : 1;
    if (uniform() < 0.5)
      ++begin[longer];
    else
      --end[longer];
  }
  const auto keep = [](std::vector<std::int32_t>& tokens, std::int64_t first, std::int64_t last) {
    tokens.erase(tokens.begin() + last, tokens.end());
    tokens.erase(tokens.begin(), tokens.begin() + first);
  };
  keep(pair.a, begin[0], end[0]);
  keep(pair.b, begin[1], end[1]);
}

/// Writes [CLS] a [SEP] b [SEP] with types and padding, nothing masked yet; [CLS] a [SEP] when b is
/// empty. Both fit into the sequence.
void join_segments(const SegmentPair& pair, const BertFormat& format, BertSample& sample);

/// The first id that is negative or not below `ids`; nothing when all are inside.
std::optional<std::int32_t> id_outside(std::span<const std::int32_t> tokens, std::int64_t ids);

// ---- masked language modelling: which tokens of a sample are predicted, and what stands in their
// place

inline constexpr double kMaskShare = 0.8;  ///< of predicted tokens; Devlin et al. 2018, section 3.1
inline constexpr double kHalf = 0.5;       ///< of the rest: a random id, or the token itself

/// Tokens that are predicted in a sample of `length`: max(1, round(mask_probability * length)).
std::int64_t masked_tokens(const BertFormat& format, std::int64_t length);

/// Megatron-LM's masking (masked_dataset.py): words, of all their pieces, in n-grams of 1 ..
/// max_ngram words with probability 1/n each, in random order, until min(mask_probability * target,
/// max(1, round(mask_probability * length)), max_predictions) tokens are predicted. Of these 80 %
/// become [MASK], 10 % a random id, 10 % stay. [CLS] and [SEP] are never masked. Draws from
/// `random` what numpy would; `target` is the row's of the sentence-pair map.
void mask_ngrams(const BertFormat& format, std::int64_t target, NumpyRandom& random,
                 BertSample& sample);

// Megatron-LM's sentence-pair map: which consecutive sentences of a document make up sample i. The
// sequences of the dataset are sentences, as trireme-preprocess --split-sentences writes them.

/// What a map depends on in addition to the dataset.
struct PairMapConfig {
  SequenceRange documents;              ///< of the split: documents, not sentences
  std::optional<std::int64_t> samples;  ///< wanted; absent: one epoch
  std::int64_t sequence = 0;            ///< tokens of a sample with [CLS] and two [SEP]
  double short_probability = 0.1;       ///< share of samples with a random, shorter target
  bool pairs = true;                    ///< at least two sentences a sample; false: one
  std::int64_t seed = 1234;             ///< 0 .. kMaxPairMapSeed

  std::int64_t max_target() const { return sequence - 3; }
  std::int64_t min_sentences() const { return pairs ? 2 : 1; }
};

/// Megatron-LM's builder takes a signed 32-bit seed, and the next one for the shuffle.
inline constexpr std::int64_t kMaxPairMapSeed = 2147483646;
/// A document of several sentences is left out when one is longer.
inline constexpr std::int32_t kLongSentence = 512;

/// Size of a map, and why documents are not in it.
struct PairMapSummary {
  std::int64_t sentences = 0, tokens = 0;  ///< of all documents of the split
  std::int64_t too_short = 0;              ///< documents of fewer than min_sentences()
  std::int64_t with_long = 0;   ///< documents left out for a sentence of over kLongSentence
  std::int64_t epochs = 0;      ///< 0 when no document can be used
  std::int64_t rows = 0;        ///< at least the wanted samples, or 0
  std::uint64_t rows_hash = 0;  ///< of the rows in any order
};

/// Counts the rows of a map without building it: a pass over the sentences' lengths per epoch.
/// Throws DeckError for a seed, sequence or probability outside its range, and for more samples
/// than the host's memory holds.
PairMapSummary summarize_pair_map(const IndexedDataset& dataset, const PairMapConfig& config);

/// Throws DeckError when no document of the split can be a sample: says why.
void require_rows(const PairMapSummary& summary, const IndexedDataset& dataset,
                  const PairMapConfig& config);

/// The map [rows, 3], equal to build_mapping's of Megatron-LM (helpers.cpp): first sentence, last
/// sentence + 1 and target length of each sample, shuffled; uint32, or uint64 when the dataset has
/// more than 2^32 - 1 sentences. Throws as summarize_pair_map() and require_rows().
NpyArray build_pair_map(const IndexedDataset& dataset, const PairMapConfig& config);

/// Throws DataError that begins with `name` unless every row of a map from a file lies within one
/// document of the split, has min_sentences() and a target of 1 to max_target() tokens, and there
/// are `config.samples` rows at least.
void check_pair_map(const NpyArray& map, const IndexedDataset& dataset, const PairMapConfig& config,
                    const std::string& name);

/// Whether the rows of a map from a file are those that build_pair_map() gives, in any order.
bool has_rows_of(const NpyArray& map, const PairMapSummary& summary);

/// The file that Megatron-LM before its core keeps the map in, without its folder:
/// NAME_train_indexmap_64000mns_512msl_0.10ssp_1234s.npy, NAME being that of the dataset; _1ep in
/// place of _64000mns for one epoch.
std::string indexmap_file(const std::filesystem::path& prefix, Split split,
                          const PairMapConfig& config);

// Megatron-LM's BERT samples (bert_dataset.py): consecutive sentences of a document, divided into
// two segments that are swapped half of the time (sentence order), or one segment.

/// All that decides the samples of one split of a dataset of sentences.
struct PairSplitConfig {
  std::filesystem::path prefix;       ///< with or without ".bin" or ".idx"
  std::vector<double> split_weights;  ///< of train, valid and test; empty: the split is all of it
  Split split = Split::train;
  std::optional<std::int64_t> samples;  ///< that the run takes; absent: one epoch
  std::int64_t seed = 1234;             ///< data.seed
  double short_probability = 0.1;
  bool pairs = true;  ///< two segments and a sentence label; false: one segment
  BertFormat format;
  std::filesystem::path index_cache;  ///< data.index_cache; empty: the folder of the dataset
  /// data.index_files: existing PREFIX_SPLIT_indexmap_....npy maps, separated by commas. The one
  /// that names this split is used instead of building.
  std::string index_files;
};

/// Sample i is row i of the map, drawn from RandomState(seed + i) as Megatron-LM draws it.
class PairSamples : public BertDataset {
 public:
  /// `map` fits `dataset` (check_pair_map). Throws as check_bert_format() does.
  PairSamples(std::shared_ptr<const IndexedDataset> dataset, NpyArray map, BertFormat format,
              bool pairs, std::int64_t seed);

  std::int64_t samples() const override { return map_.rows(); }
  void require_unchanged() const override { dataset_->require_unchanged(); }
  const NpyArray& map() const { return map_; }

 private:
  void fill(std::int64_t i, BertSample& sample) const override;
  std::shared_ptr<const IndexedDataset> dataset_;
  NpyArray map_;
  BertFormat format_;
  bool pairs_;
  std::int64_t seed_;
};

/// The map's configuration for a split of an open dataset. Throws as normalize_weights() does.
PairMapConfig pair_map_config(const PairSplitConfig& config, const IndexedDataset& dataset);

/// The map of the split that data.index_files names; nothing where it names none. Throws IoError
/// for a file that cannot be read, and as indexmap_stem() and check_pair_map() do.
std::optional<NpyArray> open_named_map(const PairSplitConfig& config,
                                       const IndexedDataset& dataset);

/// Opens a split. Collective: every process calls it with the same configuration and its own
/// `builder`. The map is kept under Megatron-LM's name (indexmap_file()) in data.index_cache or the
/// dataset's folder: a file of that name whose rows are this split's is used, wherever it comes
/// from; where there is none, the builder writes it. A file of that name with other rows (another
/// split or task: the name does not tell) stays as it is, and the map gets a name with a hash.
/// Throws IoError that names data.index_cache when the map cannot be written, DeckError for bad
/// keys, DataError for bad files; a process that throws does not reach the barrier.
std::unique_ptr<PairSamples> open_pair_split(const PairSplitConfig& config,
                                             const IndexBuilder& builder = {});

// The BERT samples of Megatron-LM's first release (2019, data_utils/datasets.py): a random place of
// a random document, and as its second segment what follows or, half of the time, a random place of
// another document (next sentence).

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
