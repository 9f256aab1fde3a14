// The options that say which tokenizer and which documents: shared by trireme-preprocess and
// trireme-tokenizer.
#pragma once

#include <string>
#include <vector>

#include "app.hpp"
#include "tokenizer/preprocess/documents.hpp"
#include "tokenizer/tokenizer.hpp"

namespace trireme {

/// --tokenizer and its files.
inline po::options_description tokenizer_options() {
  po::options_description options("Tokenizer");
  options.add_options()  //
      ("tokenizer", po::value<std::string>()->required()->value_name("TYPE"),
       "gpt2, sentencepiece, whitespace or bytes")  //
      ("vocab", po::value<std::string>()->value_name("FILE"),
       "JSON vocabulary (gpt2, whitespace)")                                     //
      ("merges", po::value<std::string>()->value_name("FILE"), "merges (gpt2)")  //
      ("model", po::value<std::string>()->value_name("FILE"), "model (sentencepiece)");
  return options;
}

/// The tokenizer that the parsed options name. Throws what make_tokenizer throws.
inline std::unique_ptr<tokenizer::Tokenizer> tokenizer_of(const po::variables_map& values) {
  const auto path = [&](const char* option) {
    return values.count(option) ? values[option].as<std::string>() : std::string();
  };
  return tokenizer::make_tokenizer(
      {path("tokenizer"), path("vocab"), path("merges"), path("model")});
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
  if (unit == "file")
    source.format = DocumentFormat::text_files;
  else if (format == "text")
    source.format = DocumentFormat::text_lines;
  else if (format == "jsonl")
    source.format = DocumentFormat::json_lines;
  return source;
}

}  // namespace trireme
