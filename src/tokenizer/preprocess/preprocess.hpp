// From documents to datasets.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "tokenizer/preprocess/documents.hpp"
#include "tokenizer/tokenizer.hpp"

namespace trireme::tokenizer {

// Splitting text into sentences by rules.

/// What the rules know of a language. Words are spelled as before their last period ("e.g"), and
/// match capitalized, too ("E.g").
struct SentenceRules {
  using Words = std::unordered_set<std::string_view>;
  std::string_view code, name;  ///< "en", "english"
  Words never_last;             ///< abbreviations that never end a sentence: Mr, e.g
  Words before_number;          ///< abbreviations only before a number or one capital: No, p, Fig
  Words perhaps_last;           ///< abbreviations that may end one: etc, Inc, a.m
  Words starters;               ///< words that, capitalized, start a sentence after these: The, It
  bool ordinal_period = false;  ///< whether "3." is an ordinal number
};

/// The rules of a language by its code or name; those of no language ("none") have no words.
/// Throws UsageError for an unknown language, naming those that there are.
const SentenceRules& sentence_rules(std::string_view language);

/// The sentences of valid UTF-8, in order, without the white space between them; with
/// `keep_newlines` each with the white space after it, so that they join to `text`. The rules:
///  1. A blank line ends a sentence; a single newline is white space.
///  2. A sentence ends with ".", "!", "?", "…" or another terminator of Unicode (UAX 29: STerm,
///     ATerm), or several, together with closing quotes and brackets and references like "[12]"
///     after them, where white space follows; a closing » may have white space before it.
///     Ideographic terminators need no white space.
///  3. Not where the next word is in lower case, or "," ";" ":" follows. Quotes, brackets and
///     dashes before that word do not count.
///  4. Not after one period that ends an abbreviation: one of `never_last`; one of `before_number`
///     before a number; one of `perhaps_last`, a single letter (an initial) or letters with periods
///     (U.S), unless the next word is one of `starters`.
///  5. Not after a number with one period that starts the sentence ("1. Introduction") or, with
///     `ordinal_period`, has at most two digits and is not followed by one of `starters`.
std::vector<std::string_view> split_sentences(std::string_view text, const SentenceRules& rules,
                                              bool keep_newlines = false);

/// `text` with plain punctuation: quotes of all forms (and `` and '') become " and ', dashes and
/// hyphens -, ellipses ..., blanks of all widths one blank, newlines kept; soft hyphens and
/// zero-width characters vanish.
std::string standardize_punctuation(std::string_view text);

// Preprocessing: tokenizes documents into an indexed dataset, or splits them into sentences.

/// Input, output and options of preprocess().
struct PreprocessOptions {
  DocumentSource source;
  std::string output;               ///< prefix of the file names
  bool append_eod = false;          ///< append the tokenizer's eod to each document that has tokens
  bool presplit_sentences = false;  ///< each line of a document is a sentence: a sequence
  const SentenceRules* split_sentences = nullptr;  ///< each sentence is a sequence; may be null
  bool keep_newlines = false;  ///< with split_sentences: sentences keep the white space after them
  bool skip_bad = false;       ///< skip and count unreadable documents instead of throwing
  int workers = 1;             ///< tokenizing threads; the caller's thread reads and writes
  std::FILE* log = nullptr;    ///< for messages about skipped documents
  std::FILE* progress = nullptr;  ///< for the progress meter
};

/// Totals of preprocess().
struct PreprocessSummary {
  std::filesystem::path dataset;  ///< prefix of .bin, .idx and .json
  std::int32_t vocab_size = 0;    ///< of the tokenizer
  std::uint64_t documents = 0;
  std::uint64_t tokens = 0;
  std::uint64_t bytes = 0;    ///< of input, after decompression
  std::uint64_t skipped = 0;  ///< unreadable documents
  double seconds = 0;
};

/// Writes <output>_<key>_document.{bin,idx,json}, or <output>_<key>_sentence.{bin,idx,json} with
/// presplit_sentences or split_sentences, the same bytes for any number of workers. Drops sentences
/// without tokens; the eod joins the last sentence. Throws what reading, tokenizing and writing
/// throw, the first error in the order of the input; DataError when there is no document;
/// UsageError when the tokenizer has no eod to append, or when presplit_sentences meets documents
/// of one line. After an exception an older dataset of this name is unchanged.
PreprocessSummary preprocess(const Tokenizer& tokenizer, const PreprocessOptions& options);

/// Input, output and options of presplit().
struct PresplitOptions {
  DocumentSource source;
  std::filesystem::path output;  ///< JSON lines
  const SentenceRules* rules = nullptr;
  bool standardize_punctuation = false;  ///< as the function of this name does, before splitting
  std::FILE* progress = nullptr;         ///< for the progress meter
};

/// Totals of presplit().
struct PresplitSummary {
  std::uint64_t documents = 0;
  std::uint64_t sentences = 0;
};

/// Writes the documents as JSON lines with a sentence per line of the text, as the
/// presplit_sentences_json.py of the first Megatron-LM does: newlines end sentences, too. Other
/// keys stay. Throws what reading and writing throw, and DataError for JSON that only Python reads.
PresplitSummary presplit(const PresplitOptions& options);

/// Input, output and options of train_tokenizer().
struct TrainingOptions {
  DocumentSource source;
  /// The model (sentencepiece), vocabulary (wordpiece) or tokenizer.json (bpe).
  std::filesystem::path output;
  std::string type = "sentencepiece";  ///< sentencepiece, wordpiece or bpe
  std::int32_t size = 0;               ///< number of pieces, with the special tokens
  std::string model_type = "unigram";  ///< unigram or bpe: sentencepiece
  bool bert_tokens = false;            ///< add [PAD], [CLS], [SEP] and [MASK]: sentencepiece
  std::optional<bool> lowercase;       ///< as in TokenizerSpec: wordpiece
  std::int32_t alphabet = 1000;        ///< maximum number of distinct characters: wordpiece
  std::string pattern = "llama3";      ///< gpt2, llama3 or qwen: bpe
  std::FILE* progress = nullptr;       ///< for the progress meter
};

/// Totals of train_tokenizer().
struct TrainingSummary {
  std::uint64_t lines = 0;  ///< without empty lines
  std::uint64_t bytes = 0;
  double seconds = 0;
};

/// Trains on each line of the documents and writes the output; for sentencepiece also the .vocab
/// file next to the model. The same input gives the same bytes. Throws what reading and writing
/// throw; UsageError for an unknown type or options of the other type, DataError when the corpus is
/// too small or too varied for the size.
TrainingSummary train_tokenizer(const TrainingOptions& options);

}  // namespace trireme::tokenizer
