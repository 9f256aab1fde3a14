// Cleaning: documents one by one through URL rules, text repair, language, length and quality
// rules, as Megatron-LM's tools/openwebtext prepares OpenWebText.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "corpus/stream.hpp"
#include "corpus/urls.hpp"
#include "tokenizer/tokenizer.hpp"

namespace trireme::corpus {

/// Rules of clean(). A document is dropped for the first rule that it breaks, in this order: URL,
/// duplicate URL, language, characters, JavaScript, tokens.
struct CleanOptions {
  StreamOptions stream;
  const UrlFilter* urls = nullptr;     ///< null: URLs are not looked at
  std::string url_key = "url";         ///< documents without this key pass
  bool repair = true;                  ///< as repair_text()
  bool decode_bytes = false;           ///< decode b'...' literals; otherwise they are an error
  std::string language = "en";         ///< keep this language; "any" keeps all
  std::uint64_t min_characters = 0;    ///< fewer are dropped
  std::uint64_t min_javascript = 256;  ///< documents that say "javascript" and are shorter
  std::uint64_t min_tokens = 128;      ///< fewer are dropped
  const tokenizer::Tokenizer* tokenizer = nullptr;  ///< that counts them; null: words
};

/// Cleans documents into JSON lines. A stream of one pass; keeps 16 bytes per URL. Throws as
/// for_each_document(); UsageError for a language when this build has no library for it, or that
/// the library does not know; DataError for a b'...' literal unless decode_bytes.
Report clean(const CleanOptions& options);

/// Writes the lines of text files that are URLs to keep: a list before the download. Reasons are
/// those of UrlFilter and "url: duplicate". Throws as clean().
Report filter_urls(const StreamOptions& options, const UrlFilter& urls);

/// Whether this build can tell languages (Debian: libcld2-dev).
bool has_language_detection();

/// ISO 639 code of the language of valid UTF-8, "un" when it is not known. Needs
/// has_language_detection().
std::string language_of(std::string_view text);

/// Words (letters, digits, _) and runs of other visible characters: no more than GPT-2's tokens.
std::uint64_t count_words(std::string_view text);

}  // namespace trireme::corpus
