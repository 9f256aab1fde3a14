#include "data/bert/pair_samples.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "core/error.hpp"
#include "data/bert/sample.hpp"

namespace trireme::data {
namespace {

std::int64_t documents_with_tokens(const SentenceDocuments& corpus, std::int64_t enough) {
  const IndexedDataset& dataset = *corpus.dataset;
  std::int64_t found = 0;
  for (std::int64_t d = corpus.documents.begin; d < corpus.documents.end && found < enough; ++d)
    found += dataset.first_token(dataset.first_sequence(d + 1)) >
             dataset.first_token(dataset.first_sequence(d));
  return found;
}

}  // namespace

void mask_tokens(const BertFormat& format, PythonRandom& random, BertSample& sample) {
  const BertVocabulary& vocabulary = *format.vocabulary;
  // All but [CLS] and the [SEP] after each segment, by place: both ids may also occur in the text.
  std::vector<std::int32_t> candidates;
  for (std::int32_t i = 1; i + 1 < sample.length; ++i)
    if (sample.types[static_cast<std::size_t>(i)] == sample.types[static_cast<std::size_t>(i + 1)])
      candidates.push_back(i);
  random.shuffle(std::span(candidates));
  const auto predicted = static_cast<std::size_t>(
      std::min(format.max_predictions.value_or(first_release_predictions(format)),
               masked_tokens(format, sample.length)));
  candidates.resize(std::min(candidates.size(), predicted));
  std::ranges::sort(candidates);
  for (const std::int32_t i : candidates) {
    std::int32_t& token = sample.tokens[static_cast<std::size_t>(i)];
    sample.labels[static_cast<std::size_t>(i)] = token;
    if (random.uniform() < kMaskShare)
      token = vocabulary.mask;
    else if (random.uniform() >= kHalf)
      token = static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(vocabulary.ids())));
  }
}

std::int64_t first_release_predictions(const BertFormat& format) {
  return static_cast<std::int64_t>(
             std::ceil(static_cast<double>(format.sequence) * format.mask_probability / 10)) *
         10;
}

FirstReleaseSamples::FirstReleaseSamples(FirstReleaseConfig config)
    : BertDataset(config.format.sequence, config.format.vocabulary->pad),
      config_(std::move(config)) {
  check_bert_format(config_.format);
  if (!(config_.short_probability >= 0) || !(config_.short_probability <= 1))
    throw DeckError("data.bert.short_sequence = {} is not between 0 and 1",
                    config_.short_probability);
  if (config_.seed < 0) throw DeckError("data.seed = {} is negative", config_.seed);
  std::int64_t with_tokens = 0;
  first_document_ = {0};
  for (const SentenceDocuments& corpus : config_.corpora) {
    first_document_.push_back(first_document_.back() + corpus.documents.size());
    with_tokens += documents_with_tokens(corpus, 2);
  }
  const std::int64_t documents = first_document_.back();
  if (with_tokens < 2)
    throw DeckError(
        "{} of the {} documents of the split have tokens; the next-sentence task takes segments of "
        "two; give the split more weight or more data",
        with_tokens, documents);
  if (documents > std::numeric_limits<std::int32_t>::max())
    throw DeckError("{} documents are more than data.bert.dialect = v0 counts, 2^31 - 1",
                    documents);
  samples_ = config_.samples.value_or(documents);
}

void FirstReleaseSamples::require_unchanged() const {
  for (const SentenceDocuments& corpus : config_.corpora) corpus.dataset->require_unchanged();
}

FirstReleaseSamples::Sentences FirstReleaseSamples::document(std::int64_t index) const {
  const auto after = std::ranges::upper_bound(first_document_, index);
  const auto which = static_cast<std::size_t>(after - first_document_.begin()) - 1;
  const SentenceDocuments& corpus = config_.corpora[which];
  const std::int64_t at = corpus.documents.begin + index - first_document_[which];
  return {corpus.dataset.get(), corpus.dataset->first_sequence(at),
          corpus.dataset->first_sequence(at + 1)};
}

// A document that has sentences.
std::int64_t FirstReleaseSamples::random_document(PythonRandom& random,
                                                  std::int64_t other_than) const {
  const std::int64_t documents = first_document_.back();
  while (true) {
    std::int64_t index = 0;
    if (other_than < 0) {
      index = random.between(0, documents - 1);
    } else {
      index = random.between(0, documents - 2);
      index += index >= other_than;
    }
    if (document(index).size() > 0) return index;
  }
}

FirstReleaseSamples::Tokens FirstReleaseSamples::read_sentence(const Sentences& document,
                                                               std::int64_t which) const {
  const std::int64_t sentence = document.first + which;
  Tokens tokens(static_cast<std::size_t>(document.dataset->length(sentence)));
  document.dataset->read(sentence, 0, std::span(tokens));
  const std::int64_t ids = config_.format.vocabulary->ids();
  if (const auto bad = id_outside(tokens, ids))
    throw DataError("'{}': token id {} in sentence {} is outside the tokenizer's {} ids",
                    document.dataset->prefix().string(), *bad, sentence, ids);
  return tokens;
}

// Draws two segments; one may be empty. Whether the second one is of another document.
bool FirstReleaseSamples::draw_pair(PythonRandom& random, std::int64_t target,
                                    SegmentPair& pair) const {
  pair = {};
  // Sentences from a random one of a random document on; sentences without tokens stay in the list.
  std::vector<Tokens> sentences;
  std::int64_t length = 0, index = 0;
  while (length < 1) {
    index = random_document(random, -1);
    const Sentences from = document(index);
    for (std::int64_t s = random.between(0, from.size() - 1);; ++s) {
      sentences.push_back(read_sentence(from, s));
      length += std::ssize(sentences.back());
      if (s == from.size() - 1 || length >= target) break;
    }
  }
  const auto append = [](Tokens& to, const Tokens& tokens) {
    to.insert(to.end(), tokens.begin(), tokens.end());
  };
  const std::int64_t count = std::ssize(sentences);
  const std::int64_t first_count = count >= 2 ? random.between(0, count) : 1;
  for (std::int64_t s = 0; s < first_count; ++s)
    append(pair.a, sentences[static_cast<std::size_t>(s)]);

  const bool random_next = count == 1 || random.uniform() < 0.5;
  if (!random_next) {
    for (std::int64_t s = first_count; s < count; ++s)
      append(pair.b, sentences[static_cast<std::size_t>(s)]);
    return false;
  }
  const std::int64_t wanted = target - std::ssize(pair.a);
  while (pair.b.empty()) {
    const Sentences from = document(random_document(random, index));
    for (std::int64_t s = random.between(0, from.size() - 1); s < from.size(); ++s) {
      append(pair.b, read_sentence(from, s));
      if (std::ssize(pair.b) >= wanted) break;
    }
  }
  return true;
}

void FirstReleaseSamples::fill(std::int64_t i, BertSample& sample) const {
  PythonRandom random(static_cast<std::uint64_t>(config_.seed + i));
  const std::int64_t sequence = config_.format.sequence;
  std::int64_t target = sequence;
  if (random.uniform() < config_.short_probability) target = random.between(2, sequence);

  SegmentPair pair;
  bool random_next = false;
  do {
    random_next = draw_pair(random, target, pair);
  } while (pair.a.empty() || pair.b.empty());
  truncate_pair(pair, sequence - 3, [&] { return random.uniform(); });
  join_segments(pair, config_.format, sample);
  sample.sentence_label = static_cast<std::int32_t>(random_next);
  mask_tokens(config_.format, random, sample);
}

}  // namespace trireme::data
