// Options of the tokenizer and of the documents, which trireme-preprocess and trireme-tokenizer
// share.
#pragma once

#include <string>
#include <vector>

#include "app.hpp"
#include "tokenizer/preprocess/preprocess.hpp"
#include "tokenizer/tokenizer.hpp"

namespace trireme {

/// --tokenizer and its files.
inline po::options_description tokenizer_options() {
  po::options_description options("Tokenizer");
  options.add_options()  //
      ("tokenizer", po::value<std::string>()->required()->value_name("TYPE"),
       "gpt2, bpe, sentencepiece, wordpiece, encdec, whitespace or bytes")  //
      ("vocab", po::value<std::string>()->value_name("FILE"),
       "vocabulary: JSON (gpt2, whitespace, encdec) or a token per line (wordpiece, encdec)")  //
      ("merges", po::value<std::string>()->value_name("FILE"), "merges (gpt2)")                //
      ("model", po::value<std::string>()->value_name("FILE"),
       "model (sentencepiece), tokenizer.json (bpe), folder of the Python package jieba "
       "(encdec)")  //
      ("lowercase", po::value<bool>()->value_name("true|false"),
       "whether the vocabulary is uncased: then the text is lower-cased and loses its accents "
       "(wordpiece)");
  return options;
}

/// --lowercase, if given.
inline std::optional<bool> lowercase_of(const po::variables_map& values) {
  return values.count("lowercase") ? std::optional(values["lowercase"].as<bool>()) : std::nullopt;
}

/// Throws UsageError for Megatron-LM's or another program's name of a tokenizer.
inline void refuse_foreign_name(const std::string& type) {
  const std::string_view meant = deck::synonymous_value(
      type, {"gpt2", "bpe", "sentencepiece", "wordpiece", "encdec", "whitespace", "bytes"});
  if (!meant.empty()) throw UsageError("unknown tokenizer '{}'; did you mean '{}'?", type, meant);
}

/// The tokenizer that the parsed options name. Throws UsageError for another program's name.
inline tokenizer::TokenizerSpec tokenizer_spec_of(const po::variables_map& values) {
  const auto path = [&](const char* option) {
    return values.count(option) ? values[option].as<std::string>() : std::string();
  };
  refuse_foreign_name(path("tokenizer"));
  return {path("tokenizer"), path("vocab"), path("merges"), path("model"), lowercase_of(values)};
}

/// --model-type and other options of training.
inline po::options_description training_options() {
  po::options_description options("Training");
  options.add_options()  //
      ("model-type", po::value<std::string>()->value_name("TYPE"),
       "sentencepiece: unigram (the default) or bpe")  //
      ("bert-tokens", po::bool_switch(),
       "sentencepiece: add the pieces [PAD], [CLS], [SEP] and [MASK], which BERT needs")  //
      ("alphabet", po::value<int>()->value_name("N"),
       "wordpiece: maximum number of distinct characters, the most frequent (1000)")  //
      ("pattern", po::value<std::string>()->value_name("NAME"),
       "bpe: where words end: as in gpt2, llama3 (the default) or qwen");
  return options;
}

/// What the parsed options of training say, --quiet included. Throws UsageError for options of the
/// other type.
inline tokenizer::TrainingOptions training_of(const po::variables_map& values,
                                              const std::string& type) {
  tokenizer::TrainingOptions training;
  training.type = type;
  training.lowercase = lowercase_of(values);
  training.progress = progress_output(values);
  const bool wordpiece = type == "wordpiece";
  if (wordpiece && (values.count("model-type") || values["bert-tokens"].as<bool>()))
    throw UsageError("--model-type and --bert-tokens are for sentencepiece, not for wordpiece");
  if (type != "bpe" && values.count("pattern"))
    throw UsageError("--pattern is for bpe, not for {}", type);
  if (type == "bpe" && (values.count("model-type") || values["bert-tokens"].as<bool>()))
    throw UsageError("--model-type and --bert-tokens are for sentencepiece, not for bpe");
  if (values.count("pattern")) training.pattern = values["pattern"].as<std::string>();
  if (!wordpiece && values.count("alphabet"))
    throw UsageError("--alphabet is for wordpiece, not for {}", type);
  if (values.count("model-type")) training.model_type = values["model-type"].as<std::string>();
  training.bert_tokens = values["bert-tokens"].as<bool>();
  if (values.count("alphabet")) training.alphabet = values["alphabet"].as<int>();
  return training;
}

/// --input and how it is read.
inline po::options_description document_options() {
  po::options_description options("Input");
  options.add_options()  //
      ("input",
       po::value<std::vector<std::string>>()->required()->multitoken()->value_name("FILE..."),
       "files, plain or compressed (gzip, bzip2, xz, zstd), or tar archives of *.txt, *.json and "
       "*.jsonl; - is standard input")  //
      ("format", po::value<std::string>()->value_name("FORMAT"),
       "jsonl (a JSON object per line) or text; default: text for *.txt, compressed or not, else "
       "jsonl")  //
      ("key", po::value<std::string>()->default_value("text")->value_name("KEY"),
       "key of the text in JSON lines")  //
      ("document", po::value<std::string>()->default_value("line")->value_name("UNIT"),
       "document of plain text: line or file");
  return options;
}

/// Whether a file is one of JSON lines by its name, compressed or not.
inline bool is_json_name(const std::string& input) {
  const std::string name = std::filesystem::path(input).filename().string();
  return name.find(".json") != std::string::npos;
}

/// The documents that the parsed options name. Throws UsageError for words that are no format.
inline tokenizer::DocumentSource documents_of(const po::variables_map& values) {
  using tokenizer::DocumentFormat;
  const auto unit = values["document"].as<std::string>();
  const auto format = values.count("format") ? values["format"].as<std::string>() : std::string();
  if (unit != "line" && unit != "file")
    throw UsageError("--document {}: expected line or file", unit);
  if (!format.empty() && format != "jsonl" && format != "text")
    throw UsageError("--format {}: expected jsonl or text", format);
  if (unit == "file" && format == "jsonl")
    throw UsageError("--document file is for plain text, not for --format jsonl");

  tokenizer::DocumentSource source;
  source.inputs = values["input"].as<std::vector<std::string>>();
  source.key = values["key"].as<std::string>();
  if (source.key.empty()) throw UsageError("--key: must name a key of the JSON lines");
  for (const std::string& input : source.inputs)
    if (unit == "file" && format.empty() && is_json_name(input))
      throw UsageError(
          "--document file: '{}' has a document per line; leave the option out, or give --format "
          "text",
          input);
  if (unit == "file")
    source.format = format.empty() ? DocumentFormat::files_by_name : DocumentFormat::text_files;
  else if (format == "text")
    source.format = DocumentFormat::text_lines;
  else if (format == "jsonl")
    source.format = DocumentFormat::json_lines;
  return source;
}

}  // namespace trireme
