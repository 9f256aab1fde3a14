#include "data/gpt/gpt_dataset.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "data/numpy.hpp"

namespace trireme::data {
namespace {

// Megatron-LM shuffles the last epoch separately when less than this part of it is used.
constexpr double kSeparateBelow = 0.80;

/// Walks the stream of documents from sample to sample.
class SampleWalk {
 public:
  SampleWalk(const NpyArray& document, std::span<const std::int32_t> lengths)
      : document_(document), lengths_(lengths) {}

  // Moves to token `target` of the stream, not before the last one asked for; false when the
  // stream is shorter.
  bool advance_to(std::int64_t target) {
    while (slot_ < document_.rows()) {
      const std::int64_t length = lengths_[static_cast<std::size_t>(document_(slot_))];
      if (target - start_ < length) {
        offset_ = target - start_;
        return true;
      }
      start_ += length;
      ++slot_;
    }
    return false;
  }

  std::int64_t slot() const { return slot_; }
  std::int64_t offset() const { return offset_; }

 private:
  const NpyArray& document_;
  std::span<const std::int32_t> lengths_;
  std::int64_t slot_ = 0, start_ = 0, offset_ = 0;
};

std::vector<std::int32_t> build_document_index(SequenceRange documents, const EpochPlan& plan,
                                               NumpyRandom& random) {
  std::vector<std::int32_t> index(static_cast<std::size_t>(plan.epochs * documents.size()));
  const auto per_epoch = static_cast<std::size_t>(documents.size());
  for (std::size_t first = 0; first < index.size(); first += per_epoch)
    std::iota(index.begin() + first, index.begin() + first + per_epoch,
              static_cast<std::int32_t>(documents.begin));
  const std::span<std::int32_t> all(index);
  const std::size_t together = plan.separate_last_epoch ? index.size() - per_epoch : index.size();
  random.shuffle(all.first(together));
  random.shuffle(all.subspan(together));
  return index;
}

template <typename T>
NpyArray build_shuffle_index(const EpochPlan& plan, NumpyRandom& random) {
  std::vector<T> index(static_cast<std::size_t>(plan.samples));
  std::iota(index.begin(), index.end(), T{0});
  const std::span<T> all(index);
  const auto together = static_cast<std::size_t>(
      plan.separate_last_epoch ? plan.samples_before_last_epoch : plan.samples);
  random.shuffle(all.first(together));
  random.shuffle(all.subspan(together));
  return NpyArray(std::move(index));
}

template <typename T>
NpyArray build_sample_rows(const NpyArray& document, std::span<const std::int32_t> lengths,
                           std::int64_t sequence, std::int64_t samples) {
  std::vector<T> rows(2 * static_cast<std::size_t>(samples + 1));
  SampleWalk walk(document, lengths);
  // Row 0 is (0, 0) even when the stream begins with an empty document.
  for (std::int64_t k = 1; k <= samples; ++k) {
    TRIREME_CHECK(walk.advance_to(k * sequence), "the stream ends before sample {}", k);
    rows[2 * k] = static_cast<T>(walk.slot());
    rows[2 * k + 1] = static_cast<T>(walk.offset());
  }
  return NpyArray(std::move(rows), 2);
}

void check_sample_rows(const GptIndex& index, std::span<const std::int32_t> lengths,
                       std::int64_t sequence, const std::string& name) {
  SampleWalk walk(index.document, lengths);
  for (std::int64_t k = 0; k <= index.samples(); ++k) {
    if (k > 0 && !walk.advance_to(k * sequence))
      throw DataError("{}: the documents of the document index end before sample {} of {} tokens",
                      name, k, sequence);
    if (index.sample(k, 0) != walk.slot() || index.sample(k, 1) != walk.offset())
      throw DataError(
          "{}: row {} of the sample index is ({}, {}), the dataset gives ({}, {}): the files "
          "belong "
          "to another dataset or sequence length",
          name, k, index.sample(k, 0), index.sample(k, 1), walk.slot(), walk.offset());
  }
}

void check_permutation(const NpyArray& shuffle, const std::string& name) {
  std::vector<bool> seen(static_cast<std::size_t>(shuffle.rows()));
  for (std::int64_t i = 0; i < shuffle.rows(); ++i) {
    const std::int64_t sample = shuffle(i);
    if (sample < 0 || sample >= shuffle.rows() || seen[static_cast<std::size_t>(sample)])
      throw DataError("{}: entry {} of the shuffle index is {}: not a permutation of {} samples",
                      name, i, sample, shuffle.rows());
    seen[static_cast<std::size_t>(sample)] = true;
  }
}

}  // namespace

EpochPlan plan_epochs(std::int64_t tokens_per_epoch, std::optional<std::int64_t> wanted,
                      std::int64_t sequence) {
  TRIREME_CHECK(tokens_per_epoch > 0 && sequence > 0 && wanted.value_or(0) >= 0,
                "{} tokens per epoch, sequence {}, {} samples", tokens_per_epoch, sequence,
                wanted.value_or(0));
  EpochPlan plan;
  std::int64_t needed = 1, total = tokens_per_epoch;
  if (wanted) {
    // The epochs' tokens stay below needed + tokens_per_epoch.
    if (__builtin_mul_overflow(*wanted, sequence, &needed) ||
        __builtin_add_overflow(needed, 1, &needed) ||
        __builtin_add_overflow(needed, tokens_per_epoch, &total))
      throw DeckError("{} samples of {} tokens are more than 64-bit numbers count", *wanted,
                      sequence);
    plan.epochs = std::max<std::int64_t>(1, (needed - 1) / tokens_per_epoch + 1);
    total = plan.epochs * tokens_per_epoch;
  }
  plan.samples = (total - 1) / sequence;
  if (plan.epochs == 1) return plan;

  plan.samples_before_last_epoch = (total - tokens_per_epoch - 1) / sequence;
  const std::int64_t of_last_epoch = *wanted - plan.samples_before_last_epoch;
  const std::int64_t per_epoch = (tokens_per_epoch - 1) / sequence;
  TRIREME_CHECK(of_last_epoch >= 0 && of_last_epoch <= per_epoch + 1,
                "{} samples of the last epoch, which has {}", of_last_epoch, per_epoch);
  plan.separate_last_epoch =
      of_last_epoch < static_cast<std::int64_t>(kSeparateBelow * static_cast<double>(per_epoch));
  return plan;
}

double index_bytes(const EpochPlan& plan, std::int64_t documents) {
  const double slots = static_cast<double>(plan.epochs) * static_cast<double>(documents);
  const double row = slots > std::numeric_limits<std::int32_t>::max() ? 8 : 4;
  const double place = shuffle_index_type(plan.samples) == IntegerType::int64 ? 8 : 4;
  return 4 * slots + (2 * row + place) * static_cast<double>(plan.samples);
}

IntegerType sample_index_type(std::int64_t slots, std::int64_t longest_document) {
  return std::max(slots, longest_document) <= std::numeric_limits<std::int32_t>::max()
             ? IntegerType::int32
             : IntegerType::int64;
}

IntegerType shuffle_index_type(std::int64_t samples) {
  return samples < std::int64_t{std::numeric_limits<std::uint32_t>::max()} - 1 ? IntegerType::uint32
                                                                               : IntegerType::int64;
}

NpyArray build_sample_index(IntegerType type, const NpyArray& document,
                            std::span<const std::int32_t> lengths, std::int64_t sequence,
                            std::int64_t samples) {
  return type == IntegerType::int32
             ? build_sample_rows<std::int32_t>(document, lengths, sequence, samples)
             : build_sample_rows<std::int64_t>(document, lengths, sequence, samples);
}

GptIndex build_gpt_index(std::span<const std::int32_t> lengths, SequenceRange documents,
                         std::optional<std::int64_t> wanted, std::int64_t sequence,
                         std::uint32_t seed) {
  if (documents.end > std::numeric_limits<std::int32_t>::max())
    throw DataError("sequence {} of the dataset: the document index counts to 2^31 - 1",
                    documents.end - 1);
  const auto part = lengths.subspan(static_cast<std::size_t>(documents.begin),
                                    static_cast<std::size_t>(documents.size()));
  const std::int64_t tokens = std::accumulate(part.begin(), part.end(), std::int64_t{0});
  const EpochPlan plan = plan_epochs(tokens, wanted, sequence);

  // One generator for the documents and then the samples: the order of these lines matters.
  NumpyRandom random(seed);
  GptIndex index;
  index.document = NpyArray(build_document_index(documents, plan, random));
  index.sample =
      build_sample_index(sample_index_type(index.document.rows(), std::ranges::max(part)),
                         index.document, lengths, sequence, plan.samples);
  index.shuffle = shuffle_index_type(plan.samples) == IntegerType::uint32
                      ? build_shuffle_index<std::uint32_t>(plan, random)
                      : build_shuffle_index<std::int64_t>(plan, random);
  return index;
}

void check_gpt_index(const GptIndex& index, std::span<const std::int32_t> lengths,
                     std::int64_t sequence, const std::string& name) {
  if (index.document.shape().size() != 1 || index.shuffle.shape().size() != 1 ||
      index.sample.shape().size() != 2 || index.sample.columns() != 2)
    throw DataError(
        "{}: expected a document index [n], a sample index [n, 2] and a shuffle index [n]", name);
  if (index.sample.rows() != index.samples() + 1)
    throw DataError("{}: the sample index has {} rows, the shuffle index {}; expected one row more",
                    name, index.sample.rows(), index.samples());
  for (std::int64_t slot = 0; slot < index.document.rows(); ++slot) {
    const std::int64_t document = index.document(slot);
    if (document < 0 || document >= std::ssize(lengths))
      throw DataError("{}: entry {} of the document index is {}, the dataset has {} sequences",
                      name, slot, document, lengths.size());
  }
  check_sample_rows(index, lengths, sequence, name);
  check_permutation(index.shuffle, name);
}

GptDataset::GptDataset(GptCorpus corpus, SampleFormat format)
    : samples_(corpus.index.samples()),
      format_(format),
      fields_{{.name = field::kTokens, .size = format.sequence},
              {.name = field::kLabels, .size = format.sequence, .padding = kIgnoredLabel}} {
  corpora_.push_back(std::move(corpus));
  if (!format_.eod_loss && !format_.eod)
    throw DeckError(
        "data.eod_loss = false needs the end-of-document token: give data.tokenizer one that has "
        "it");
}

GptDataset::GptDataset(std::vector<GptCorpus> corpora, BlendIndex blend, std::int64_t wanted,
                       SampleFormat format, const std::string& name)
    : GptDataset(corpora.front(), format) {
  corpora_ = std::move(corpora);
  std::vector<std::int64_t> sizes;
  for (const GptCorpus& corpus : corpora_) sizes.push_back(corpus.index.samples());
  samples_ = check_blend_index(blend, sizes, wanted, name);
  blend_ = std::move(blend);
}

void GptDataset::read_tokens(std::int64_t sample, std::span<std::int32_t> tokens) const {
  TRIREME_CHECK(sample >= 0 && sample < samples(), "sample {} of {}", sample, samples());
  TRIREME_CHECK(std::ssize(tokens) == format_.sequence + 1, "{} tokens wanted, sequence is {}",
                tokens.size(), format_.sequence);
  const auto& [corpus, index] = corpora_[blend_ ? blend_->dataset(sample) : 0];
  const std::int64_t row = index.shuffle(blend_ ? blend_->sample(sample) : sample);
  std::int64_t slot = index.sample(row, 0), offset = index.sample(row, 1);
  while (!tokens.empty()) {
    const std::int64_t sequence = index.document(slot++);
    const std::int64_t rest = corpus->length(sequence) - offset;
    const auto part = tokens.first(std::min<std::size_t>(tokens.size(), rest));
    corpus->read(sequence, offset, part);
    check_ids(*corpus, sequence, offset, part);
    tokens = tokens.subspan(part.size());
    offset = 0;
  }
}

void GptDataset::require_unchanged() const {
  for (const GptCorpus& corpus : corpora_) corpus.tokens->require_unchanged();
}

void GptDataset::check_ids(const IndexedDataset& corpus, std::int64_t sequence, std::int64_t offset,
                           std::span<const std::int32_t> tokens) const {
  const auto bad = std::ranges::find_if(
      tokens, [vocab = format_.vocab](std::int32_t id) { return id < 0 || id >= vocab; });
  if (bad == tokens.end()) return;
  throw DataError(
      "'{}': token id {} in document {} (sequence {}, token {}) is outside the vocabulary: "
      "model.vocab = {}",
      corpus.prefix().string(), *bad, corpus.document_of(sequence), sequence,
      offset + (bad - tokens.begin()), format_.vocab);
}

void GptDataset::read(std::int64_t sample, std::span<const std::span<std::int32_t>> tensors) const {
  TRIREME_CHECK(tensors.size() == 2, "{} tensors", tensors.size());
  const auto inputs = tensors[0], labels = tensors[1];
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(format_.sequence) + 1);
  read_tokens(sample, tokens);
  std::copy(tokens.begin(), tokens.end() - 1, inputs.begin());
  std::copy(tokens.begin() + 1, tokens.end(), labels.begin());
  if (format_.eod_loss) return;
  for (std::size_t i = 0; i < labels.size(); ++i)
    if (inputs[i] == *format_.eod) labels[i] = kIgnoredLabel;
}

}  // namespace trireme::data
