// A sample of BERT's pretraining: its segments and masks; and the samples of Megatron-LM's first
// release.
#include "data/bert/sample.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

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

// ---- masked language modelling

namespace {

/// The words of a sample: lists of positions, kept one after the other.
struct Words {
  std::vector<std::int32_t> positions;
  std::vector<std::int32_t> first;  ///< [words + 1] index into `positions`

  std::int64_t size() const { return std::ssize(first) - 1; }
  /// Positions of the `n` words from `word` on, fewer at the end.
  std::span<const std::int32_t> ngram(std::int64_t word, std::int64_t n) const {
    const std::int64_t last = std::min(word + n, size());
    return std::span(positions).subspan(
        static_cast<std::size_t>(first[static_cast<std::size_t>(word)]),
        static_cast<std::size_t>(first[static_cast<std::size_t>(last)] -
                                 first[static_cast<std::size_t>(word)]));
  }
};

// A piece that continues a word joins the last word before it, also across a [SEP].
Words find_words(const BertVocabulary& vocabulary, const BertSample& sample) {
  Words words;
  for (std::int32_t i = 0; i < sample.length; ++i) {
    const std::int32_t id = sample.tokens[static_cast<std::size_t>(i)];
    if (id == vocabulary.cls || id == vocabulary.sep) continue;
    if (words.first.empty() || !vocabulary.continues_word[static_cast<std::size_t>(id)])
      words.first.push_back(static_cast<std::int32_t>(words.positions.size()));
    words.positions.push_back(i);
  }
  words.first.push_back(static_cast<std::int32_t>(words.positions.size()));
  return words;
}

/// The cumulative distribution of n - 1, p(n) proportional to 1/n, in numpy's order of operations.
std::vector<double> ngram_distribution(std::int64_t max_ngram) {
  std::vector<double> p(static_cast<std::size_t>(max_ngram));
  for (std::size_t n = 0; n < p.size(); ++n) p[n] = 1.0 / static_cast<double>(n + 1);
  // Megatron-LM normalizes twice; numpy.sum adds fewer than eight numbers one after the other.
  for (int pass = 0; pass < 2; ++pass) {
    const double sum = std::accumulate(p.begin(), p.end(), 0.0);
    for (double& probability : p) probability /= sum;
  }
  std::partial_sum(p.begin(), p.end(), p.begin());
  const double last = p.back();
  for (double& boundary : p) boundary /= last;
  return p;
}

/// Not whole: mask_probability * target may be below 1, and then nothing is masked.
double max_predictions_of(const BertFormat& format, std::int64_t target, std::int64_t length) {
  const double share = std::min(format.mask_probability * static_cast<double>(target),
                                static_cast<double>(masked_tokens(format, length)));
  return format.max_predictions ? std::min(share, static_cast<double>(*format.max_predictions))
                                : share;
}

}  // namespace

void mask_ngrams(const BertFormat& format, std::int64_t target, NumpyRandom& random,
                 BertSample& sample) {
  const BertVocabulary& vocabulary = *format.vocabulary;
  const Words words = find_words(vocabulary, sample);
  const double limit = max_predictions_of(format, target, sample.length);
  const std::vector<double> distribution = ngram_distribution(format.max_ngram);

  std::vector<std::int32_t> order(static_cast<std::size_t>(words.size()));
  std::iota(order.begin(), order.end(), 0);
  random.shuffle(std::span(order));

  std::int64_t masked = 0;
  for (const std::int32_t word : order) {
    if (static_cast<double>(masked) >= limit) break;
    // The longest n-gram, from the drawn length down, that stays within the limit.
    std::int64_t n =
        1 + (std::ranges::upper_bound(distribution, random.uniform()) - distribution.begin());
    std::span<const std::int32_t> positions = words.ngram(word, n);
    while (static_cast<double>(masked + std::ssize(positions)) > limit && n > 1)
      positions = words.ngram(word, --n);
    if (static_cast<double>(masked + std::ssize(positions)) > limit) continue;
    const auto is_masked = [&](std::int32_t i) {
      return sample.labels[static_cast<std::size_t>(i)] >= 0;
    };
    if (std::ranges::any_of(positions, is_masked)) continue;

    for (const std::int32_t i : positions) {
      std::int32_t& token = sample.tokens[static_cast<std::size_t>(i)];
      sample.labels[static_cast<std::size_t>(i)] = token;
      if (random.uniform() < kMaskShare)
        token = vocabulary.mask;
      else if (random.uniform() >= kHalf)
        token = static_cast<std::int32_t>(
            random.interval(static_cast<std::uint64_t>(vocabulary.ids() - 1)));
    }
    masked += std::ssize(positions);
  }
}

std::int64_t masked_tokens(const BertFormat& format, std::int64_t length) {
  // Python's round(): half to even.
  const double share = std::nearbyint(static_cast<double>(length) * format.mask_probability);
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(share));
}

// ---- Megatron-LM's first release

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
