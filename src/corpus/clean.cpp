#include "corpus/clean.hpp"

#include <unicode/uchar.h>

#ifdef TRIREME_WITH_CLD2
#include <cld2/public/compact_lang_det.h>
#endif

#include <algorithm>
#include <cctype>
#include <unordered_set>

#include "core/error.hpp"
#include "tokenizer/utf8.hpp"

namespace trireme::corpus {
namespace {

constexpr const char* kAnyLanguage = "any";

/// Characters per token of the longest ordinary texts: longer documents need no tokenizing.
constexpr std::uint64_t kMaxCharactersPerToken = 8;

bool mentions_javascript(std::string_view text) {
  constexpr std::string_view word = "javascript";
  return !std::ranges::search(text, word, {}, [](unsigned char c) {
            return static_cast<char>(std::tolower(c));
          }).empty();
}

bool has_too_few_tokens(const CleanOptions& options, const std::string& text,
                        std::uint64_t characters) {
  if (characters >= kMaxCharactersPerToken * options.min_tokens) return false;
  const std::uint64_t tokens =
      options.tokenizer ? options.tokenizer->encode(text).size() : count_words(text);
  return tokens < options.min_tokens;
}

/// Why `text` is dropped; "" when it is kept.
std::string reason_of(const CleanOptions& options, const std::string& text) {
  if (options.language != kAnyLanguage && language_of(text) != options.language)
    return "language is not " + options.language;
  const std::uint64_t characters = count_characters(text);
  if (characters < options.min_characters)
    return fmt::format("fewer than {} characters", options.min_characters);
  if (characters < options.min_javascript && mentions_javascript(text))
    return fmt::format("javascript in fewer than {} characters", options.min_javascript);
  if (has_too_few_tokens(options, text, characters))
    return fmt::format("fewer than {} tokens", options.min_tokens);
  return "";
}

std::string dropped_line(Document& document, const std::string& reason) {
  document.fields["reason"] = reason;
  document.fields["place"] = document.place;
  return document.fields.dump() + "\n";
}

Outcome clean_document(const CleanOptions& options, Document& document) {
  const std::string& key = options.stream.source.key;
  Outcome outcome;
  outcome.characters = count_characters(document.text);
  std::string text = document.text;
  if (is_bytes_literal(text)) {
    if (!options.decode_bytes)
      throw DataError(
          "{}: the text is a Python literal of bytes (b'...'): the script that wrote it printed "
          "bytes; decode it there, or give --decode-bytes-literals",
          document.place);
    try {
      text = decode_bytes_literal(text);
    } catch (const DataError& error) {
      throw DataError("{}: {}", document.place, error.what());
    }
    outcome.changes.push_back("bytes literal decoded");
  }
  if (options.repair) {
    std::string repaired = repair_text(text);
    if (repaired != text) outcome.changes.push_back("text repaired");
    text = std::move(repaired);
  }
  if (options.urls) outcome.url = document.field(options.url_key.c_str());
  if (!outcome.url.empty()) outcome.reason = options.urls->reason(outcome.url);
  // A URL that is dropped is not seen: a later document may have it.
  if (!outcome.reason.empty()) outcome.url.clear();
  if (outcome.reason.empty()) outcome.reason = reason_of(options, text);
  if (outcome.reason.empty()) outcome.lines.push_back(json_line(document, key, text));
  if (options.stream.dropped.empty()) return outcome;
  // Kept for a document whose URL turns out to be a duplicate, too.
  document.fields[key] = document.text;
  outcome.dropped_line =
      dropped_line(document, outcome.reason.empty() ? "url: duplicate" : outcome.reason);
  return outcome;
}

/// The URLs of the documents so far, as hashes.
class SeenUrls {
 public:
  /// Drops an outcome whose URL has been seen.
  void check(Outcome& outcome) {
    if (outcome.url.empty() || seen_.insert(hash128(outcome.url)).second) return;
    outcome.reason = "url: duplicate";
  }

 private:
  std::unordered_set<Hash128, Hash128Bucket> seen_;
};

void require_language(const std::string& language) {
  if (language == kAnyLanguage) return;
  if (!has_language_detection())
    throw UsageError(
        "--language {}: this build cannot tell languages; install CLD2 (Debian: libcld2-dev) and "
        "configure again, or give --language any",
        language);
#ifdef TRIREME_WITH_CLD2
  if (CLD2::GetLanguageFromName(language.c_str()) == CLD2::UNKNOWN_LANGUAGE)
    throw UsageError("--language {}: expected a code that CLD2 knows, such as en or de, or any",
                     language);
#endif
}

}  // namespace

bool has_language_detection() {
#ifdef TRIREME_WITH_CLD2
  return true;
#else
  return false;
#endif
}

std::string language_of([[maybe_unused]] std::string_view text) {
#ifdef TRIREME_WITH_CLD2
  bool reliable = false;
  const CLD2::Language language = CLD2::DetectLanguage(
      text.data(), static_cast<int>(std::min<std::size_t>(text.size(), 1 << 20)),
      /*is_plain_text=*/true, &reliable);
  return CLD2::LanguageCode(language);
#else
  throw UsageError("this build cannot tell languages");
#endif
}

std::uint64_t count_words(std::string_view text) {
  enum class Kind { blank, word, other } before = Kind::blank;
  std::uint64_t count = 0;
  for (std::size_t at = 0; at < text.size();) {
    const tokenizer::Utf8Step step = tokenizer::read_utf8(text, at);
    const auto c = static_cast<UChar32>(step.code_point);
    const Kind kind = u_isUWhiteSpace(c)          ? Kind::blank
                      : u_isalnum(c) || c == U'_' ? Kind::word
                                                  : Kind::other;
    if (kind != Kind::blank && kind != before) ++count;
    before = kind;
    at += step.length;
  }
  return count;
}

Report clean(const CleanOptions& options) {
  require_language(options.language);
  Collector collector("clean", options.stream);
  SeenUrls seen;
  for_each_document(
      options.stream, [&](Document& document) { return clean_document(options, document); },
      [&](Outcome& outcome) {
        seen.check(outcome);
        collector.take(outcome);
      },
      [&](std::uint64_t bytes) { collector.read_bytes(bytes); });
  return collector.finish();
}

Report filter_urls(const StreamOptions& options, const UrlFilter& urls) {
  Collector collector("urls", options);
  SeenUrls seen;
  for_each_document(
      options,
      [&](Document& document) {
        Outcome outcome;
        const std::size_t end = document.text.find_last_not_of(" \t\r\v\f");
        outcome.url = document.text.substr(0, end == std::string::npos ? 0 : end + 1);
        outcome.url.erase(0,
                          std::min(outcome.url.find_first_not_of(" \t\v\f"), outcome.url.size()));
        outcome.characters = count_characters(outcome.url);
        outcome.lines.push_back(outcome.url + "\n");
        outcome.reason = urls.reason(outcome.url);
        document.fields = {{"url", outcome.url}};
        outcome.dropped_line =
            dropped_line(document, outcome.reason.empty() ? "url: duplicate" : outcome.reason);
        if (!outcome.reason.empty()) outcome.url.clear();
        return outcome;
      },
      [&](Outcome& outcome) {
        seen.check(outcome);
        collector.take(outcome);
      },
      [&](std::uint64_t bytes) { collector.read_bytes(bytes); });
  return collector.finish();
}

}  // namespace trireme::corpus
