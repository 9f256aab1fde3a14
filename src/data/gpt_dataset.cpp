#include "data/gpt_dataset.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/error.hpp"

namespace trireme::data {

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
