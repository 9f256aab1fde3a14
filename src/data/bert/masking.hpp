// Masked language modelling: which tokens of a sample are predicted, and what stands in their
// place.
#pragma once

#include "data/bert/sample.hpp"
#include "data/numpy.hpp"

namespace trireme::data {

class PythonRandom;

/// Megatron-LM's masking (masked_dataset.py): words, of all their pieces, in n-grams of 1 ..
/// max_ngram words with probability 1/n each, in random order, until min(mask_probability * target,
/// max(1, round(mask_probability * length)), max_predictions) tokens are predicted. Of these 80 %
/// become [MASK], 10 % a random id, 10 % stay. [CLS] and [SEP] are never masked. Draws from
/// `random` what numpy would; `target` is the row's of the sentence-pair map.
void mask_ngrams(const BertFormat& format, std::int64_t target, NumpyRandom& random,
                 BertSample& sample);

/// The masking of Megatron-LM's first release (data_utils/datasets.py): single pieces, drawn
/// without replacement, min(max_predictions, max(1, round(mask_probability * length))) of them; 80
/// % [MASK], 10 % the same, 10 % a random id. Draws what Python's random.Random would.
void mask_tokens(const BertFormat& format, PythonRandom& random, BertSample& sample);

/// Tokens that mask_ngrams predicts in a sample at most: the same for every sample of the format.
std::int64_t max_masked_ngrams(const BertFormat& format);

/// Where data.bert.max_predictions is not given, the first release's: mask_probability * sequence
/// rounded up to a multiple of 10.
std::int64_t first_release_predictions(const BertFormat& format);

}  // namespace trireme::data
