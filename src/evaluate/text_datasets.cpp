#include "evaluate/text_datasets.hpp"

#include <algorithm>
#include <utility>

#include "core/error.hpp"
#include "evaluate/detokenize.hpp"
#include "tokenizer/preprocess/documents.hpp"

namespace trireme::evaluate {
namespace {

std::vector<data::Field> fields_of(std::int64_t sequence, std::int32_t padding) {
  return {{.name = data::field::kTokens, .size = sequence, .padding = padding},
          {.name = data::field::kLabels, .size = sequence, .padding = data::kIgnoredLabel}};
}

/// Calls `visit(text, place)` for each document of `path`, until it returns false.
template <typename Visit>
void for_each_document(const std::string& path, tokenizer::DocumentFormat format, Visit&& visit) {
  const tokenizer::DocumentSource source{.inputs = {path}, .format = format};
  tokenizer::DocumentReader reader(source);
  tokenizer::DocumentBatch batch;
  while (reader.read(batch))
    for (const auto& record : batch.records)
      if (!visit(tokenizer::document_text(batch, record, source.key),
                 tokenizer::place_of(batch, record)))
        return;
}

}  // namespace

WindowDataset::WindowDataset(std::vector<std::int32_t> tokens, std::int64_t sequence,
                             std::int64_t step, std::int32_t padding)
    : tokens_(std::move(tokens)),
      sequence_(sequence),
      step_(step),
      padding_(padding),
      fields_(fields_of(sequence, padding)) {
  if (step < 1 || step > sequence)
    throw UsageError("--overlapping-eval {}: expected 1 to model.sequence = {}", step, sequence);
  if (tokens_.size() < 2)
    throw DataError("the text has {} tokens: nothing to score", tokens_.size());
  samples_ = 1 + (std::max<std::int64_t>(this->tokens() - 1 - sequence, 0) + step - 1) / step;
}

void WindowDataset::read(std::int64_t sample,
                         std::span<const std::span<std::int32_t>> tensors) const {
  TRIREME_CHECK(sample >= 0 && sample < samples_, "sample {} of {}", sample, samples_);
  const std::int64_t first = sample * step_, scored = sample == 0 ? 0 : sequence_ - step_;
  for (std::int64_t i = 0; i < sequence_; ++i) {
    const std::int64_t at = first + i;
    tensors[0][i] = at < tokens() ? tokens_[at] : padding_;
    tensors[1][i] = i >= scored && at + 1 < tokens() ? tokens_[at + 1] : data::kIgnoredLabel;
  }
}

ClozeDataset::ClozeDataset(std::vector<ClozeItem> items, std::int64_t sequence,
                           std::int32_t padding)
    : items_(std::move(items)),
      sequence_(sequence),
      padding_(padding),
      fields_(fields_of(sequence, padding)) {
  if (items_.empty()) throw DataError("there is no item to score");
  for (ClozeItem& item : items_) {
    const std::int64_t size = std::ssize(item.target);
    if (size < 1 || size > sequence)
      throw DataError("item {} has a target of {} tokens: expected 1 to model.sequence = {}",
                      &item - items_.data() + 1, size, sequence);
    if (item.context.empty()) item.context = {padding};
    const std::int64_t excess = std::ssize(item.context) + size - (sequence + 1);
    if (excess > 0) item.context.erase(item.context.begin(), item.context.begin() + excess);
  }
}

void ClozeDataset::read(std::int64_t sample,
                        std::span<const std::span<std::int32_t>> tensors) const {
  const auto& [context, target] = items_.at(static_cast<std::size_t>(sample));
  const std::int64_t before = std::ssize(context), size = before + std::ssize(target);
  const auto token = [&](std::int64_t i) { return i < before ? context[i] : target[i - before]; };
  for (std::int64_t i = 0; i < sequence_; ++i) {
    tensors[0][i] = i < size ? token(i) : padding_;
    tensors[1][i] = i + 1 >= before && i + 1 < size ? token(i + 1) : data::kIgnoredLabel;
  }
}

std::vector<ClozeItem> read_lambada(const std::string& path, const tokenizer::Tokenizer& tokenizer,
                                    bool strict, std::int64_t limit) {
  std::vector<ClozeItem> items;
  const auto visit = [&](const std::string& text, const std::string& place) {
    ClozeItem item;
    if (strict) {
      const std::string_view stripped = strip_space(text);
      const std::size_t word = last_word(stripped);
      item.context = tokenizer.encode(strip_space(stripped.substr(0, word)));
      if (word < stripped.size())
        item.target = tokenizer.encode(fmt::format(" {}", stripped.substr(word)));
    } else {
      item.context = tokenizer.encode(text);
      if (!item.context.empty()) {
        item.target = {item.context.back()};
        item.context.pop_back();
      }
    }
    if (item.target.empty()) throw DataError("{}: the text has no last word to predict", place);
    items.push_back(std::move(item));
    return std::ssize(items) < limit;
  };
  for_each_document(path, tokenizer::DocumentFormat::json_lines, visit);
  return items;
}

std::vector<std::int32_t> read_documents(const std::string& path,
                                         const tokenizer::Tokenizer& tokenizer,
                                         std::int64_t enough) {
  const bool plain = path.ends_with(".txt");
  std::vector<std::int32_t> ids;
  const auto visit = [&](const std::string& text, const std::string&) {
    const std::vector<std::int32_t> document = tokenizer.encode(text);
    ids.insert(ids.end(), document.begin(), document.end());
    if (const auto eod = tokenizer.eod()) ids.push_back(*eod);
    return std::ssize(ids) < enough;
  };
  for_each_document(
      path, plain ? tokenizer::DocumentFormat::text_files : tokenizer::DocumentFormat::by_name,
      visit);
  return ids;
}

}  // namespace trireme::evaluate
