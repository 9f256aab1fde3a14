#include "evaluate/tasks.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

#include "core/error.hpp"
#include "tokenizer/preprocess/preprocess.hpp"
#include "tokenizer/tokenizer.hpp"

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
  const char* plain_text = format == tokenizer::DocumentFormat::by_name_whole
                               ? "plain text is read from a file whose name ends in .txt"
                               : "expected a line such as {\"text\": \"...\"} for each text";
  tokenizer::DocumentReader reader(source);
  tokenizer::DocumentBatch batch;
  while (reader.read(batch))
    for (const auto& record : batch.records)
      if (!visit(tokenizer::document_text(batch, record, source.key, plain_text),
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
    throw UnscorableText("the text has {} tokens: nothing to score", tokens_.size());
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
  if (items_.empty()) throw UnscorableText("there is no item to score");
  for (ClozeItem& item : items_) {
    const std::int64_t size = std::ssize(item.target);
    if (size < 1 || size > sequence)
      throw DataError("{}: a target of {} tokens: expected 1 to model.sequence = {}", item.place,
                      size, sequence);
    if (item.context.empty()) item.context = {padding};
    const std::int64_t excess = std::ssize(item.context) + size - (sequence + 1);
    if (excess > 0) item.context.erase(item.context.begin(), item.context.begin() + excess);
  }
}

void ClozeDataset::read(std::int64_t sample,
                        std::span<const std::span<std::int32_t>> tensors) const {
  const ClozeItem& item = items_.at(static_cast<std::size_t>(sample));
  const std::int64_t before = std::ssize(item.context), size = before + std::ssize(item.target);
  const auto token = [&](std::int64_t i) {
    return i < before ? item.context[i] : item.target[i - before];
  };
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
    item.place = place;
    items.push_back(std::move(item));
    return std::ssize(items) < limit;
  };
  for_each_document(path, tokenizer::DocumentFormat::json_lines, visit);
  return items;
}

std::vector<std::int32_t> read_documents(const std::string& path,
                                         const tokenizer::Tokenizer& tokenizer,
                                         std::int64_t enough) {
  std::vector<std::int32_t> ids;
  const auto visit = [&](const std::string& text, const std::string&) {
    const std::vector<std::int32_t> document = tokenizer.encode(text);
    ids.insert(ids.end(), document.begin(), document.end());
    if (const auto eod = tokenizer.eod()) ids.push_back(*eod);
    return std::ssize(ids) < enough;
  };
  for_each_document(path, tokenizer::DocumentFormat::by_name_whole, visit);
  return ids;
}

std::string read_text(const std::string& path) {
  std::string whole;
  for_each_document(path, tokenizer::DocumentFormat::text_files,
                    [&](const std::string& text, const std::string&) {
                      whole += text;
                      return true;
                    });
  return whole;
}

namespace {

using Replacement = std::pair<std::string_view, std::string_view>;

/// Whether Python's str.isspace() holds.
bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

/// Removes the white space next to a pair of brackets or quotes: re.sub of open \s*([^close]*?)\s*
/// close.
std::string strip_within(const std::string& text, char open, char close) {
  std::string out;
  std::size_t begin = 0;
  while (true) {
    const std::size_t first = text.find(open, begin);
    const std::size_t last =
        first == std::string::npos ? std::string::npos : text.find(close, first + 1);
    if (last == std::string::npos) return out.append(text, begin);
    const std::string_view inner(text.data() + first + 1, last - first - 1);
    out.append(text, begin, first + 1 - begin).append(strip_space(inner)).push_back(close);
    begin = last + 1;
  }
}

}  // namespace

std::string replace_all(const std::string& text, std::string_view from, std::string_view to) {
  std::string out;
  std::size_t begin = 0;
  for (std::size_t at; (at = text.find(from, begin)) != std::string::npos;) {
    out.append(text, begin, at - begin).append(to);
    begin = at + from.size();
  }
  return out.append(text, begin);
}

std::string_view strip_space(std::string_view text) {
  std::size_t begin = text.size(), end = 0;
  for (std::size_t at = 0; at < text.size();) {
    const tokenizer::Utf8Step step = tokenizer::read_utf8(text, at);
    if (!is_space(step.code_point)) {
      begin = std::min(begin, at);
      end = at + step.length;
    }
    at += step.length;
  }
  return begin < end ? text.substr(begin, end - begin) : std::string_view();
}

std::size_t last_word(std::string_view text) {
  std::size_t word = 0;
  for (std::size_t at = 0; at < text.size();) {
    const tokenizer::Utf8Step step = tokenizer::read_utf8(text, at);
    at += step.length;
    if (is_space(step.code_point)) word = at;
  }
  return word;
}

std::string detokenize_wikitext(std::string text) {
  // Megatron-LM's second rule, re.sub(r"/' [0-9]/", ...), has no effect on any text without
  // slashes around a quoted digit: it was meant for another regular-expression syntax.
  for (const Replacement& each : {Replacement{"s '", "s'"},
                                  {" @-@ ", "-"},
                                  {" @,@ ", ","},
                                  {" @.@ ", "."},
                                  {" : ", ": "},
                                  {" ; ", "; "},
                                  {" . ", ". "},
                                  {" ! ", "! "},
                                  {" ? ", "? "},
                                  {" , ", ", "}})
    text = replace_all(text, each.first, each.second);
  for (const auto& [open, close] :
       {std::pair{'(', ')'}, {'[', ']'}, {'{', '}'}, {'"', '"'}, {'\'', '\''}})
    text = strip_within(text, open, close);
  for (const Replacement& each : {Replacement{"= = = =", "===="},
                                  {"= = =", "==="},
                                  {"= =", "=="},
                                  {" \xC2\xB0 ", "\xC2\xB0"},
                                  {" \n", "\n"},
                                  {"\n ", "\n"},
                                  {" N ", " 1 "},
                                  {" 's", "'s"}})
    text = replace_all(text, each.first, each.second);
  return text;
}

std::string detokenize_ptb(std::string text) {
  for (const Replacement& each : {Replacement{" '", "'"},
                                  {" \n", "\n"},
                                  {"\n ", "\n"},
                                  {" n't", "n't"},
                                  {" N ", "1 "},
                                  {"$ 1", "$1"},
                                  {"# 1", "#1"}})
    text = replace_all(text, each.first, each.second);
  return text;
}

std::string detokenize(std::string text, const std::filesystem::path& path) {
  const bool ptb = path.string().find("ptb") != std::string::npos;
  return ptb ? detokenize_ptb(std::move(text)) : detokenize_wikitext(std::move(text));
}

std::int64_t count_words(std::string_view text) {
  const std::string_view words = strip_space(text);
  return std::ranges::count(words, ' ') + 1;
}

}  // namespace trireme::evaluate
