// Preparing a corpus: clean documents, remove duplicates, cut out what evaluation texts have, too.
#pragma once

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "corpus/stream.hpp"
#include "tokenizer/tokenizer.hpp"

namespace trireme::corpus {

// Cleaning: documents one by one through URL rules, text repair, language, length and quality
// rules, as Megatron-LM's tools/openwebtext prepares OpenWebText.

// ---- URLs to leave out of a corpus: blacklisted domains and file types, malformed, short

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

// Similarity of texts: sets of shingles, their Jaccard similarity, MinHash signatures and bands.
// Source: Broder, "On the resemblance and containment of documents" (1997); Leskovec, Rajaraman,
// Ullman, "Mining of Massive Datasets", chapter 3.

/// The set of hashes of all runs of 5 characters of valid UTF-8, sorted, each once. As in
/// Megatron-LM's find_duplicates.py the last run is left out, and a text of 5 characters or fewer
/// has none.
std::vector<std::uint64_t> shingles(std::string_view text);

/// What the size of the intersection is divided by.
enum class JaccardRule { union_of_both, smaller, larger };

/// The similarity of two sets of shingles, 0 to 1; 0 when one is empty.
double jaccard(const std::vector<std::uint64_t>& a, const std::vector<std::uint64_t>& b,
               JaccardRule rule);

/// A family of `hashes` hash functions that `seed` selects.
class MinHash {
 public:
  MinHash(std::uint64_t seed, int hashes);

  /// For each function its minimum over the set: two sets have equal minima with the probability
  /// of their Jaccard similarity (by the union).
  std::vector<std::uint32_t> signature(const std::vector<std::uint64_t>& shingles) const;

  /// One hash for each of `bands` equal parts of a signature. Two texts of similarity s share at
  /// least one band with probability 1 - (1 - s^rows)^bands, rows = hashes / bands.
  static std::vector<std::uint64_t> bands(const std::vector<std::uint32_t>& signature, int bands);

 private:
  struct Function {
    std::uint64_t multiplier, offset;
  };
  std::vector<Function> functions_;
};

/// Sets that grow together: groups of documents.
class Groups {
 public:
  explicit Groups(std::size_t size) : parents_(size) {
    for (std::size_t i = 0; i < size; ++i) parents_[i] = static_cast<std::uint32_t>(i);
  }
  /// The first document of the group of `i`.
  std::uint32_t first(std::uint32_t i) {
    while (parents_[i] != i) i = parents_[i] = parents_[parents_[i]];
    return i;
  }
  /// Joins the groups of `a` and `b`.
  void join(std::uint32_t a, std::uint32_t b) {
    a = first(a), b = first(b);
    (a < b ? parents_[b] : parents_[a]) = a < b ? a : b;
  }

 private:
  std::vector<std::uint32_t> parents_;
};

// Duplicate documents: exact copies, and near copies by MinHash and locality-sensitive hashing as
// in Megatron-LM's tools/openwebtext (find_duplicates, group_duplicate_url,
// remove_group_duplicates). Also shuffling, the step after it.

/// Options of dedup().
struct DedupOptions {
  StreamOptions stream;
  std::uint64_t seed = 1234;
  bool near = true;  ///< false: exact copies only
  int hashes = 100;  ///< of a signature; a multiple of `bands`
  int bands = 10;    ///< documents that share a band are compared
  JaccardRule rule = JaccardRule::union_of_both;
  double similar = 0.5;    ///< above this a document leaves the bucket it was compared in
  double duplicate = 0.8;  ///< from this on two documents are of one group
  int rounds = 1;  ///< documents per bucket that all others of it are compared with; -1: all
};

/// Writes the documents without copies: of each group of duplicates the first. Reasons are "exact
/// duplicate" and "near duplicate"; dropped documents have "duplicate_of", the number of the kept
/// document among all that were read, from 1. Keeps about 150 bytes per document in memory, and the
/// text in a temporary file next to the output. Throws as for_each_document(), and UsageError for
/// options out of range.
Report dedup(const DedupOptions& options);

/// Options of shuffle().
struct ShuffleOptions {
  tokenizer::DocumentSource source;
  std::filesystem::path output;
  std::uint64_t seed = 1234;
  std::FILE* progress = nullptr;
};

/// Writes the lines of all inputs in a random order that depends on the seed and their number
/// alone. Keeps 1/256 of the text in memory, and all of it in temporary files next to the output.
/// Returns the number of lines. Throws what reading and writing throw; DataError for a line of JSON
/// lines that is no JSON object and when there is no line.
std::uint64_t shuffle(const ShuffleOptions& options);

// Contamination: parts of documents that evaluation texts have, too, are cut out, as by
// Megatron-LM's tools/openwebtext/filter_ngrams.py.

/// A text as words: runs of letters, digits and "_", regardless of case.
struct Words {
  std::vector<std::uint64_t> hashes;     ///< of each word
  std::vector<std::uint32_t> positions;  ///< of each word's first character
  std::vector<std::uint32_t> lengths;    ///< of each word, in characters
};

/// The words of a text.
Words words_of(std::u32string_view text);

/// Rules of decontaminate().
struct ContaminationRules {
  std::size_t max_ngram = 13;        ///< words; runs of so many are looked up
  std::size_t min_ngram = 8;         ///< evaluation texts of fewer words are left out
  std::uint64_t max_count = 10;      ///< n-grams that documents have so often are no contamination
  std::size_t margin = 200;          ///< characters cut on each side, then up to the sentence's end
  std::size_t min_characters = 200;  ///< parts with no more are dropped
  std::size_t max_parts = 10;        ///< documents that fall into more are dropped
};

/// The n-grams of evaluation texts: all of max_ngram words, and whole texts of min_ngram to
/// max_ngram - 1 words.
class Ngrams {
 public:
  explicit Ngrams(const ContaminationRules& rules) : rules_(rules) {}

  /// Adds those of an evaluation text.
  void add(std::string_view text);

  std::size_t size() const { return ngrams_.size(); }

  /// The n-grams in a document, by hash: each match is followed by the text after it.
  std::vector<std::uint64_t> matches(std::string_view document) const;

  /// Counts occurrences in documents. matches() may run in other threads meanwhile.
  void count(const std::vector<std::uint64_t>& matches);

  /// Drops the n-grams that have been counted max_count times or more.
  void drop_frequent();

  /// The parts of a document without n-grams; the document itself when it has none of them.
  std::vector<std::string> parts(std::string_view document) const;

 private:
  /// An n-gram found in a text.
  struct Match {
    std::uint64_t hash = 0;
    std::size_t begin = 0, length = 0;  ///< in characters; length counts one blank between words
  };
  bool find(const Words& words, Match& match) const;
  bool has(const Words& words, std::size_t first, std::size_t count, Match& match) const;

  struct Ngram {
    std::size_t words = 0;
    std::uint64_t count = 0;  ///< occurrences in documents
  };
  ContaminationRules rules_;
  std::unordered_map<std::uint64_t, Ngram> ngrams_;  ///< by hash
  std::set<std::size_t> short_sizes_;                ///< the lengths below max_ngram that there are
};

/// Input, evaluation texts and rules.
struct ContaminationOptions {
  StreamOptions stream;
  tokenizer::DocumentSource evaluation;
  ContaminationRules rules;
};

/// Writes the documents without what the evaluation texts have. A document in several parts gives
/// several lines with "split_id": its place and the number of the part, "input:line#1". Reasons are
/// "contaminated: nothing is left" and "contaminated: more than N parts". Reads the input twice
/// unless max_count is 0, which means no such limit. Throws as for_each_document(); DataError for
/// evaluation texts without an n-gram; UsageError for an input that cannot be read twice.
Report decontaminate(const ContaminationOptions& options);

}  // namespace trireme::corpus
