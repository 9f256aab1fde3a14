// Training a tokenizer on documents.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>

#include "tokenizer/preprocess/documents.hpp"

namespace trireme::tokenizer {

/// Input, output and options of train_tokenizer().
struct TrainingOptions {
  DocumentSource source;
  std::filesystem::path output;        ///< the model (sentencepiece) or vocabulary (wordpiece)
  std::string type = "sentencepiece";  ///< sentencepiece or wordpiece
  std::int32_t size = 0;               ///< number of pieces, with the special tokens
  std::string model_type = "unigram";  ///< unigram or bpe: sentencepiece
  bool bert_tokens = false;            ///< add [PAD], [CLS], [SEP] and [MASK]: sentencepiece
  std::optional<bool> lowercase;       ///< as in TokenizerSpec: wordpiece
  std::int32_t alphabet = 1000;        ///< maximum number of distinct characters: wordpiece
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
