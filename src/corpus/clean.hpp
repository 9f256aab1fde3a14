// Cleaning: documents one by one through URL rules, text repair, language, length and quality
// rules, as Megatron-LM's tools/openwebtext prepares OpenWebText.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "corpus/stream.hpp"
#include "tokenizer/tokenizer.hpp"

namespace trireme::corpus {

// ---- URLs to leave out of a corpus: blacklisted domains and file types, malformed,
// short

/// Rules for one URL at a time; duplicates are the stream's. The checks and their order are those
/// of Megatron-LM's tools/openwebtext/blacklist_urls.py: domain, file type, length, form.
class UrlFilter {
 public:
  /// With the built-in lists: hosts of pictures, videos, music, files, games and shops and social
  /// networks, and suffixes of files that are not prose.
  UrlFilter();

  /// Adds the words of `path`, one a line, to the domains or suffixes; "#" starts a comment. Throws
  /// IoError when it cannot be read, DataError with the line for a word with a blank in it.
  void add_domains(const std::filesystem::path& path);
  void add_suffixes(const std::filesystem::path& path);

  /// Why the URL is dropped: "url: domain", "url: file type", "url: short" (8 characters or fewer),
  /// "url: malformed" (not http or https, no host with a dot or IPv4 address, blanks); or "".
  std::string reason(std::string_view url) const;

  /// The registered name in a URL: "bbc" of https://news.bbc.co.uk/x; "" without a host. The
  /// public suffix is the last label, or the last two in names such as co.uk and com.au.
  static std::string domain_of(std::string_view url);

 private:
  std::unordered_set<std::string> domains_;
  std::unordered_set<std::string> suffixes_;
};

// ---- text repair (repair.cpp): the common rules of ftfy.fix_text (Robyn Speer, "ftfy", 2019)

/// Valid UTF-8 in, valid UTF-8 out; repairing twice changes nothing more. In this order, until
/// nothing changes:
///  1. HTML entities become characters unless the text has a "<": the named ones of HTML 4, and
///     numbers; a semicolon is needed.
///  2. Escape sequences of terminals vanish.
///  3. Mojibake: UTF-8 that was read as Latin-1 or Windows-1252, once or several times, is read
///     again. A sequence is repaired where it is a whole character of UTF-8 and implausible as
///     text: all of 3 or 4 bytes; those of 2 bytes after U+00C2 or U+00C3, and in runs of two or
///     more (Greek, Cyrillic), and all of a line with one of these. A capital letter before a
///     quote, a dash or an ellipsis stays when it ends a word in capitals.
///  4. C1 control characters become those of Windows-1252.
///  5. Ligatures become letters; full-width forms become ASCII.
///  6. Curly quotes become straight.
///  7. Line breaks of all kinds become \n.
///  8. Control characters, byte-order marks and interlinear annotations vanish; tabs and form feeds
///     stay.
///  9. Normal form C.
std::string repair_text(std::string_view text);

/// Whether the text is a Python literal of bytes: b'...' or b"...", with no such quote inside.
bool is_bytes_literal(std::string_view text);

/// What Python's literal_eval(text).decode() gives. Throws DataError with the reason:
/// characters outside ASCII, \x without two digits, bytes that are not UTF-8.
std::string decode_bytes_literal(std::string_view text);

// ---- whole documents

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
