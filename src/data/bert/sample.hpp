// A sample of BERT's pretraining: two segments of tokens, some of which are masked.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "data/dataset.hpp"
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

/// Tokens that mask_ngrams predicts in a sample at most: the same for every sample of the format.
std::int64_t max_masked_ngrams(const BertFormat& format);

}  // namespace trireme::data
