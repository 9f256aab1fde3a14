#include "corpus/corpus.hpp"

#include <unicode/uchar.h>

#include <algorithm>

#include "core/error.hpp"
#include "tokenizer/tokenizer.hpp"

namespace trireme::corpus {
namespace {

/// Python's \w: letters, numbers of all kinds and "_".
bool is_word(char32_t c) {
  constexpr std::uint32_t kMask = U_GC_L_MASK | U_GC_N_MASK;
  return c == U'_' || (U_GET_GC_MASK(static_cast<UChar32>(c)) & kMask) != 0;
}

bool ends_sentence(char32_t c) { return c == U'.' || c == U'!' || c == U'?'; }

std::u32string characters_of(std::string_view text) {
  std::u32string result;
  for (std::size_t at = 0; at < text.size();) {
    const tokenizer::Utf8Step step = tokenizer::read_utf8(text, at);
    result.push_back(step.code_point);
    at += step.length;
  }
  return result;
}

std::string utf8_of(std::u32string_view text) {
  std::string result;
  for (const char32_t c : text) tokenizer::append_utf8(result, c);
  return result;
}

std::uint64_t ngram_hash(const Words& words, std::size_t first, std::size_t count) {
  std::uint64_t hash = count;
  for (std::size_t i = first; i < first + count; ++i) hash = mix64(hash ^ words.hashes[i]);
  return hash;
}

/// The text before and after a match, without the margins and the sentences that they end in.
std::pair<std::u32string_view, std::u32string_view> cut(std::u32string_view text, std::size_t begin,
                                                        std::size_t length, std::size_t margin) {
  std::u32string_view before, after;
  std::size_t at = begin > margin ? begin - margin : 0;
  while (at > 0 && !ends_sentence(text[at])) --at;
  if (at > 0) before = text.substr(0, at + 1);
  at = begin + length + margin;
  while (at < text.size() && !ends_sentence(text[at])) ++at;
  if (at + 1 < text.size()) after = text.substr(at + 1);
  return {before, after};
}

}  // namespace

Words words_of(std::u32string_view text) {
  Words words;
  std::uint64_t hash = 0;
  bool inside = false;
  const auto end_word = [&](std::size_t end) {
    if (!inside) return;
    words.hashes.push_back(hash);
    words.lengths.push_back(static_cast<std::uint32_t>(end - words.positions.back()));
    inside = false;
  };
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (!is_word(text[at])) {
      end_word(at);
      continue;
    }
    if (!inside) {
      words.positions.push_back(static_cast<std::uint32_t>(at));
      hash = 0;
      inside = true;
    }
    hash = mix64(hash ^ static_cast<std::uint64_t>(
                            u_foldCase(static_cast<UChar32>(text[at]), U_FOLD_CASE_DEFAULT)));
  }
  end_word(text.size());
  return words;
}

void Ngrams::add(std::string_view text) {
  const Words words = words_of(characters_of(text));
  const std::size_t count = words.hashes.size();
  if (count < rules_.min_ngram) return;
  const std::size_t length = std::min(count, rules_.max_ngram);
  for (std::size_t first = 0; first + length <= count; ++first)
    ngrams_.emplace(ngram_hash(words, first, length), Ngram{length});
  if (length < rules_.max_ngram) short_sizes_.insert(length);
}

bool Ngrams::has(const Words& words, std::size_t first, std::size_t count, Match& match) const {
  const std::uint64_t hash = ngram_hash(words, first, count);
  if (!ngrams_.contains(hash)) return false;
  match = {hash, words.positions[first], count - 1};
  for (std::size_t i = first; i < first + count; ++i) match.length += words.lengths[i];
  return true;
}

bool Ngrams::find(const Words& words, Match& match) const {
  const std::size_t count = words.hashes.size();
  if (count < rules_.max_ngram) return false;
  const std::size_t last = count - rules_.max_ngram;
  for (std::size_t first = 0; first <= last; ++first) {
    if (has(words, first, rules_.max_ngram, match)) return true;
    for (const std::size_t size : short_sizes_)
      if (has(words, first, size, match)) return true;
  }
  // Shorter n-grams inside the last window.
  if (last == 0) return false;
  for (const std::size_t size : short_sizes_)
    for (std::size_t first = last; first + size <= count; ++first)
      if (has(words, first, size, match)) return true;
  return false;
}

std::vector<std::uint64_t> Ngrams::matches(std::string_view document) const {
  std::vector<std::uint64_t> found;
  std::u32string text = characters_of(document);
  Match match;
  while (find(words_of(text), match)) {
    found.push_back(match.hash);
    const std::size_t next = match.begin + match.length + 1;
    if (next >= text.size()) break;
    text.erase(0, next);
  }
  return found;
}

void Ngrams::count(const std::vector<std::uint64_t>& matches) {
  for (const std::uint64_t hash : matches) ++ngrams_.at(hash).count;
}

void Ngrams::drop_frequent() {
  std::erase_if(ngrams_, [&](const auto& entry) { return entry.second.count >= rules_.max_count; });
  short_sizes_.clear();
  for (const auto& [hash, ngram] : ngrams_)
    if (ngram.words < rules_.max_ngram) short_sizes_.insert(ngram.words);
}

std::vector<std::string> Ngrams::parts(std::string_view document) const {
  std::vector<std::string> parts;
  std::u32string rest = characters_of(document);
  Match match;
  while (find(words_of(rest), match)) {
    const auto [before, after] = cut(rest, match.begin, match.length, rules_.margin);
    if (before.size() > rules_.min_characters) parts.push_back(utf8_of(before));
    if (after.size() <= rules_.min_characters) return parts;
    rest = std::u32string(after);
  }
  parts.push_back(utf8_of(rest));
  return parts;
}

// ---------------------------------------------------------------------------- the command

namespace {

Ngrams read_evaluation(const ContaminationOptions& options) {
  Ngrams ngrams(options.rules);
  tokenizer::DocumentReader reader(options.evaluation);
  tokenizer::DocumentBatch batch;
  while (reader.read(batch))
    for (const auto& record : batch.records)
      ngrams.add(tokenizer::document_text(batch, record, options.evaluation.key));
  if (ngrams.size() == 0)
    throw DataError("{}: the evaluation texts have no text of {} words or more",
                    options.evaluation.inputs.front(), options.rules.min_ngram);
  return ngrams;
}

void check(const ContaminationOptions& options) {
  const ContaminationRules& rules = options.rules;
  if (rules.min_ngram < 1 || rules.min_ngram > rules.max_ngram)
    throw UsageError("--min-ngram {} must be between 1 and --max-ngram {}", rules.min_ngram,
                     rules.max_ngram);
  if (rules.max_count > 0)
    tokenizer::require_rereadable(options.stream.source.inputs, "--max-count above 0");
}

Outcome clean_parts(const ContaminationOptions& options, const Ngrams& ngrams, Document& document) {
  const std::string& key = options.stream.source.key;
  Outcome outcome;
  outcome.characters = count_characters(document.text);
  const std::vector<std::string> parts = ngrams.parts(document.text);
  if (parts.empty()) outcome.reason = "contaminated: nothing is left";
  if (parts.size() > options.rules.max_parts)
    outcome.reason = fmt::format("contaminated: more than {} parts", options.rules.max_parts);
  if (!outcome.reason.empty()) {
    outcome.dropped_line = with_field(document.line, "reason", outcome.reason) + "\n";
    return outcome;
  }
  const std::string split_id = document.field("split_id");
  for (std::size_t i = 0; i < parts.size(); ++i) {
    std::string line = json_line(document, key, parts[i]);
    if (parts.size() > 1)
      line = with_field(
          line, "split_id",
          fmt::format("{}{}#{}", split_id.empty() ? "" : split_id + "-", document.place, i + 1));
    outcome.lines.push_back(std::move(line));
  }
  if (parts.size() > 1)
    outcome.changes.push_back("contaminated: split");
  else if (parts.front().size() < document.text.size())
    outcome.changes.push_back("contaminated: trimmed");
  return outcome;
}

}  // namespace

Report decontaminate(const ContaminationOptions& options) {
  check(options);
  Ngrams ngrams = read_evaluation(options);
  if (options.rules.max_count > 0) {
    Progress progress("counting n-grams", "B", input_bytes(options.stream.source.inputs),
                      options.stream.progress);
    std::uint64_t bytes = 0;
    for_each_document(
        options.stream,
        [&](Document& document) { return Outcome{.hashes = ngrams.matches(document.text)}; },
        [&](Outcome& outcome) { ngrams.count(outcome.hashes); },
        [&](std::uint64_t more) { progress.update(static_cast<double>(bytes += more)); });
    ngrams.drop_frequent();
  }
  Collector collector("decontaminate", options.stream);
  for_each_document(
      options.stream, [&](Document& document) { return clean_parts(options, ngrams, document); },
      [&](Outcome& outcome) { collector.take(outcome); },
      [&](std::uint64_t bytes) { collector.read_bytes(bytes); });
  return collector.finish();
}

}  // namespace trireme::corpus
