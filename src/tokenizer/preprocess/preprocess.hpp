// Preprocessing: tokenizes documents into an indexed dataset.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>

#include "tokenizer/preprocess/documents.hpp"
#include "tokenizer/tokenizer.hpp"

namespace trireme::tokenizer {

/// Input, output and options of preprocess().
struct PreprocessOptions {
  DocumentSource source;
  std::string output;               ///< prefix of the file names
  bool append_eod = false;          ///< append the tokenizer's eod to each document that has tokens
  bool presplit_sentences = false;  ///< a document's lines are its sentences, a sequence each
  bool skip_bad = false;            ///< skip and count unreadable documents instead of throwing
  int workers = 1;                  ///< tokenizing threads; the caller's thread reads and writes
  std::FILE* log = nullptr;         ///< for progress (at most once a second) and skipped lines
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
/// presplit_sentences, the same bytes for any number of workers. Drops sentences without tokens;
/// the eod joins the last sentence. Throws what reading, tokenizing and writing throw, the first
/// error in the order of the input; DataError when there is no document; UsageError when the
/// tokenizer has no eod to append, or when presplit_sentences meets documents of one line. After an
/// exception an older dataset of this name is unchanged.
PreprocessSummary preprocess(const Tokenizer& tokenizer, const PreprocessOptions& options);

}  // namespace trireme::tokenizer
