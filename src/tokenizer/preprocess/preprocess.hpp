// Documents to an indexed dataset.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>

#include "tokenizer/preprocess/documents.hpp"
#include "tokenizer/tokenizer.hpp"

namespace trireme::tokenizer {

/// What to preprocess and how.
struct PreprocessOptions {
  DocumentSource source;
  std::string output;       ///< prefix of the files' names
  bool append_eod = false;  ///< end each document that is not empty with the tokenizer's eod
  bool presplit_sentences = false;  ///< a document's lines are its sentences, a sequence each
  bool skip_bad = false;            ///< leave bad documents out instead of stopping
  int workers = 1;                  ///< threads that tokenize; one more reads and writes
  std::FILE* log = nullptr;  ///< takes progress, at most once a second, and bad lines; may be null
};

/// What was done.
struct PreprocessSummary {
  std::filesystem::path dataset;  ///< prefix of .bin, .idx and .json
  std::int32_t vocab_size = 0;    ///< of the tokenizer
  std::uint64_t documents = 0;
  std::uint64_t tokens = 0;
  std::uint64_t bytes = 0;    ///< of input, after decompression
  std::uint64_t skipped = 0;  ///< bad documents left out
  double seconds = 0;
};

/// Writes <output>_<key>_document.{bin,idx,json}, or <output>_<key>_sentence.{bin,idx,json} with
/// presplit_sentences, the same bytes for any number of workers. Sentences without tokens are left
/// out; the eod goes to the last sentence. Throws what reading, tokenizing and writing throw, the
/// first in the input's order; DataError when no document is left; UsageError when the tokenizer
/// has no eod to append, or when presplit_sentences meets documents of one line. Then these names
/// are as they were before.
PreprocessSummary preprocess(const Tokenizer& tokenizer, const PreprocessOptions& options);

}  // namespace trireme::tokenizer
