#include "data/gpt_dataset.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/error.hpp"

namespace trireme::data {

GptDataset::GptDataset(std::shared_ptr<const IndexedDataset> tokens, GptIndex index,
                       SampleFormat format)
    : tokens_(std::move(tokens)), index_(std::move(index)), format_(format) {
  if (!format_.eod_loss && !format_.eod)
    throw DeckError(
        "data.eod_loss = false needs the end-of-document token: give data.tokenizer one that has "
        "it");
}

void GptDataset::read(std::int64_t sample, std::span<std::int32_t> tokens) const {
  TRIREME_CHECK(sample >= 0 && sample < samples(), "sample {} of {}", sample, samples());
  TRIREME_CHECK(std::ssize(tokens) == format_.sequence + 1, "{} tokens wanted, sequence is {}",
                tokens.size(), format_.sequence);
  const std::int64_t row = index_.shuffle(sample);
  std::int64_t slot = index_.sample(row, 0), offset = index_.sample(row, 1);
  while (!tokens.empty()) {
    const std::int64_t sequence = index_.document(slot++);
    const std::int64_t rest = tokens_->length(sequence) - offset;
    const auto part = tokens.first(std::min<std::size_t>(tokens.size(), rest));
    tokens_->read(sequence, offset, part);
    check_ids(sequence, offset, part);
    tokens = tokens.subspan(part.size());
    offset = 0;
  }
}

void GptDataset::check_ids(std::int64_t sequence, std::int64_t offset,
                           std::span<const std::int32_t> tokens) const {
  const auto bad = std::ranges::find_if(
      tokens, [vocab = format_.vocab](std::int32_t id) { return id < 0 || id >= vocab; });
  if (bad == tokens.end()) return;
  throw DataError(
      "'{}': token id {} in document {} (sequence {}, token {}) is outside the vocabulary: "
      "model.vocab = {}",
      tokens_->prefix().string(), *bad, tokens_->document_of(sequence), sequence,
      offset + (bad - tokens.begin()), format_.vocab);
}

void GptDataset::fill(std::int64_t sample, std::span<std::int32_t> inputs,
                      std::span<std::int32_t> labels) const {
  TRIREME_CHECK(inputs.size() == labels.size(), "{} inputs, {} labels", inputs.size(),
                labels.size());
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(format_.sequence) + 1);
  read(sample, tokens);
  std::copy(tokens.begin(), tokens.end() - 1, inputs.begin());
  std::copy(tokens.begin() + 1, tokens.end(), labels.begin());
  if (format_.eod_loss) return;
  for (std::size_t i = 0; i < labels.size(); ++i)
    if (inputs[i] == *format_.eod) labels[i] = kIgnoredLabel;
}

}  // namespace trireme::data
