// Contamination: parts of documents that evaluation texts have, too, are cut out, as by
// Megatron-LM's tools/openwebtext/filter_ngrams.py.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "corpus/stream.hpp"

namespace trireme::corpus {

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
/// evaluation texts without an n-gram; UsageError for standard input that would be read twice.
Report decontaminate(const ContaminationOptions& options);

}  // namespace trireme::corpus
