// Masked language modelling: which tokens of a sample are predicted, and what stands in their
// place.
#pragma once

#include "data/bert/sample.hpp"
#include "data/numpy.hpp"

namespace trireme::data {

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
