// trireme-tokenizer: encodes text, decodes ids, trains SentencePiece models, WordPiece vocabularies
// and byte-level BPE.
#include <fmt/ranges.h>

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "app.hpp"
#include "core/text.hpp"
#include "tokenizer/preprocess/preprocess.hpp"
#include "tokenizer_options.hpp"

namespace trireme {
namespace {

constexpr const char* kProgram = "trireme-tokenizer";
constexpr const char* kUsage =
    "Usage: trireme-tokenizer encode --tokenizer TYPE [options]\n"
    "       trireme-tokenizer decode --tokenizer TYPE [options]\n"
    "       trireme-tokenizer train --input FILE... --output FILE --size N [options]\n"
    "encode reads lines of text and prints a JSON list of ids for each; decode does the reverse;\n"
    "train makes a SentencePiece model, a WordPiece vocabulary or a byte-level BPE's "
    "tokenizer.json.\n\n";

/// Applies `convert` to each line of standard input and prints what it returns, line by line, until
/// one of the two ends. `convert` throws DataError without a place.
void for_each_line(const std::function<std::string(const std::string&)>& convert) {
  std::ios::sync_with_stdio(false);
  std::string line;
  for (std::uint64_t number = 1; std::getline(std::cin, line) && !std::ferror(stdout); ++number) {
    try {
      print_out(convert(line) + "\n");
    } catch (const DataError& error) {
      throw DataError("standard input:{}: {}", number, error.what());
    }
  }
  if (std::cin.bad()) throw IoError("cannot read standard input");
}

std::vector<std::int32_t> parse_ids(const std::string& line) {
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  const auto is_id = [](const nlohmann::json& id) {
    return id.is_number_unsigned() && id.get<std::uint64_t>() <= INT32_MAX;
  };
  const bool has_nul = line.find('\0') != std::string::npos;  // the end of the library's input
  if (has_nul || !json.is_array() || !std::all_of(json.begin(), json.end(), is_id))
    throw DataError("expected a JSON list of ids, such as [464, 3290]");
  return json.get<std::vector<std::int32_t>>();
}

po::options_description train_options() {
  po::options_description options("train");
  options.add_options()  //
      ("type", po::value<std::string>()->default_value("sentencepiece")->value_name("TYPE"),
       "sentencepiece, wordpiece or bpe")  //
      ("output", po::value<std::string>()->required()->value_name("FILE"),
       "the file to write: the model (sentencepiece; its pieces and their scores go to the .vocab "
       "file next to it), the vocabulary (wordpiece) or tokenizer.json (bpe)")  //
      ("size", po::value<int>()->required()->value_name("N"),
       "number of pieces, with the special tokens");
  return options.add(training_options());
}

void train(const po::variables_map& values) {
  tokenizer::TrainingOptions training = training_of(values, values["type"].as<std::string>());
  training.source = documents_of(values);
  training.output = output_of(values, "output", training.source.inputs);
  training.size = values["size"].as<int>();
  const tokenizer::OutputFolder folder(training.output);
  const auto summary = tokenizer::train_tokenizer(training);
  print_out(fmt::format("{}: {} ({}) from {}, {}, in {:.1f} s\n", training.output.string(),
                        counted(training.size, "piece"),
                        training.type == "sentencepiece" ? training.model_type : training.type,
                        counted(summary.lines, "line"), counted(summary.bytes, "byte"),
                        summary.seconds));
}

/// Refuses words and --input: encode and decode read standard input.
po::variables_map parse_codec_options(int argc, char** argv) {
  po::options_description options = tokenizer_options();
  options.add_options()("input", po::value<std::vector<std::string>>()->multitoken())(
      "word", po::value<std::vector<std::string>>());
  const po::variables_map values =
      parse_options(argc, argv, options, po::positional_options_description().add("word", -1));
  for (const char* option : {"input", "word"})
    if (values.count(option))
      throw UsageError("'{}': {} reads standard input: trireme-tokenizer {} ... < FILE",
                       values[option].as<std::vector<std::string>>().front(), argv[0], argv[0]);
  return values;
}

ExitCode run(int argc, char** argv) {
  po::options_description all;
  all.add(tokenizer_options()).add(document_options()).add(train_options()).add(general_options());
  if (answers_help_or_version(argc, argv, kProgram, kUsage, all)) return ExitCode::success;

  const std::string command = argc > 1 ? argv[1] : "";
  const auto parse = [&](const po::options_description& options) {
    return parse_options(argc - 1, argv + 1, options);
  };
  if (command == "train") {
    po::options_description options;
    options.add(document_options()).add(train_options());
    options.add_options()("lowercase", po::value<bool>());
    train(parse(options));
  } else if (command == "encode") {
    const auto tokenizer =
        make_tokenizer(tokenizer_spec_of(parse_codec_options(argc - 1, argv + 1)));
    for_each_line([&](const std::string& line) {
      return fmt::format("[{}]", fmt::join(tokenizer->encode(line), ", "));
    });
  } else if (command == "decode") {
    const auto tokenizer =
        make_tokenizer(tokenizer_spec_of(parse_codec_options(argc - 1, argv + 1)));
    for_each_line([&](const std::string& line) { return tokenizer->decode(parse_ids(line)); });
  } else if (command.empty()) {
    throw UsageError("expected a command: encode, decode or train");
  } else {
    throw UsageError("unknown command '{}': expected encode, decode or train{}", command,
                     did_you_mean(command, {"encode", "decode", "train"}));
  }
  return ExitCode::success;
}

}  // namespace
}  // namespace trireme

int main(int argc, char** argv) {
  return trireme::run_app(trireme::kProgram, argc, argv, trireme::run);
}
