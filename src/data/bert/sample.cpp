#include "data/bert/sample.hpp"

#include <algorithm>

#include "core/error.hpp"

namespace trireme::data {

BertVocabulary bert_vocabulary(const tokenizer::Tokenizer& tokenizer) {
  const auto tokens = tokenizer.bert_tokens();
  if (!tokens)
    throw DeckError(
        "data.tokenizer: a vocabulary of type {} without [CLS], [SEP], [MASK] and [PAD] makes no "
        "samples for BERT; give one of type wordpiece that has them",
        tokenizer.name());
  BertVocabulary vocabulary{
      .cls = tokens->cls, .sep = tokens->sep, .mask = tokens->mask, .pad = tokens->pad};
  for (std::int32_t id = 0; id < tokenizer.vocab_size(); ++id)
    vocabulary.continues_word.push_back(tokenizer.continues_word(id));
  return vocabulary;
}

BertSample::BertSample(std::span<const std::span<std::int32_t>> tensors)
    : tokens(tensors[0]),
      types(tensors[1]),
      labels(tensors[2]),
      length(tensors[3][0]),
      sentence_label(tensors[4][0]) {}

void BertSample::clear(std::int32_t pad) {
  std::ranges::fill(tokens, pad);
  std::ranges::fill(types, 0);
  std::ranges::fill(labels, kIgnoredLabel);
  length = 0;
  sentence_label = kIgnoredLabel;
}

BertDataset::BertDataset(std::int64_t sequence, std::int32_t pad)
    : fields_{{field::kTokens, sequence, pad},
              {field::kTokenTypes, sequence, 0},
              {field::kLabels, sequence, kIgnoredLabel},
              {field::kLengths, 1, 0},
              {field::kSentenceLabels, 1, kIgnoredLabel}} {}

void BertDataset::read(std::int64_t sample,
                       std::span<const std::span<std::int32_t>> tensors) const {
  TRIREME_CHECK(sample >= 0 && sample < samples(), "sample {} of {}", sample, samples());
  TRIREME_CHECK(tensors.size() == fields_.size(), "{} tensors of {} fields", tensors.size(),
                fields_.size());
  BertSample view(tensors);
  fill(sample, view);
}

void check_bert_format(const BertFormat& format) {
  if (format.sequence < kMinBertSequence)
    throw DeckError(
        "model.sequence = {} is too short for BERT: [CLS], two [SEP] and two tokens need {}",
        format.sequence, kMinBertSequence);
  if (!(format.mask_probability > 0) || !(format.mask_probability < 1))
    throw DeckError("data.bert.mask_probability = {} is not between 0 and 1",
                    format.mask_probability);
  if (format.max_ngram < 1 || format.max_ngram > kMaxBertNgram)
    throw DeckError("data.bert.max_ngram = {} is not between 1 and {}", format.max_ngram,
                    kMaxBertNgram);
  if (format.max_predictions && *format.max_predictions < 1)
    throw DeckError("data.bert.max_predictions = {} is not at least 1", *format.max_predictions);
  TRIREME_CHECK(format.vocabulary != nullptr, "a format without a vocabulary");
  const BertVocabulary& vocabulary = *format.vocabulary;
  for (const std::int32_t id : {vocabulary.cls, vocabulary.sep, vocabulary.mask, vocabulary.pad})
    if (id < 0 || id >= vocabulary.ids())
      throw DeckError("data.tokenizer: special token id {} is outside its {} ids", id,
                      vocabulary.ids());
}

void join_segments(const SegmentPair& pair, const BertFormat& format, BertSample& sample) {
  const BertVocabulary& vocabulary = *format.vocabulary;
  const std::int64_t length =
      std::ssize(pair.a) + 2 + (pair.b.empty() ? 0 : std::ssize(pair.b) + 1);
  TRIREME_CHECK(length <= format.sequence, "{} tokens in a sequence of {}", length,
                format.sequence);
  sample.clear(vocabulary.pad);
  auto at = sample.tokens.begin();
  *at++ = vocabulary.cls;
  at = std::ranges::copy(pair.a, at).out;
  *at++ = vocabulary.sep;
  if (!pair.b.empty()) {
    const auto second = sample.types.begin() + (at - sample.tokens.begin());
    std::fill_n(second, pair.b.size() + 1, 1);
    at = std::ranges::copy(pair.b, at).out;
    *at++ = vocabulary.sep;
  }
  sample.length = static_cast<std::int32_t>(length);
}

std::optional<std::int32_t> id_outside(std::span<const std::int32_t> tokens, std::int64_t ids) {
  const auto bad =
      std::ranges::find_if(tokens, [ids](std::int32_t id) { return id < 0 || id >= ids; });
  return bad == tokens.end() ? std::nullopt : std::optional(*bad);
}

}  // namespace trireme::data
