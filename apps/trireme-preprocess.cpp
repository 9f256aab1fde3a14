// trireme-preprocess: documents to a dataset of token ids, datasets to one, documents to parts.
#include "preprocess/commands.hpp"

namespace trireme {
namespace {

constexpr const char* kProgram = "trireme-preprocess";
constexpr const char* kUsage =
    "Usage: trireme-preprocess --input FILE... --output PREFIX --tokenizer TYPE [options]\n"
    "       trireme-preprocess merge --output PREFIX PREFIX...\n"
    "       trireme-preprocess split --input FILE... --output DIR --fractions A,B,C [--seed N]\n"
    "Without a command writes PREFIX_<key>_document.bin and .idx, a dataset in Megatron-LM's\n"
    "format, and .json, which names its tokenizer. merge appends datasets to one; split divides\n"
    "JSON lines at random into train, valid and test. Inputs may be compressed (gzip, bzip2,\n"
    "xz, zstd) or be tar archives of *.txt, *.json and *.jsonl.\n\n";

ExitCode run(int argc, char** argv) {
  po::options_description all;
  all.add(preprocess::encode_options())
      .add(preprocess::merge_options())
      .add(preprocess::split_options())
      .add(general_options());
  if (answers_help_or_version(argc, argv, kProgram, kUsage, all)) return ExitCode::success;

  const std::string command = argc > 1 && argv[1][0] != '-' ? argv[1] : "";
  if (command == "merge") {
    po::options_description options = preprocess::merge_options();
    options.add_options()("words", po::value<std::vector<std::string>>());
    po::positional_options_description positional;
    positional.add("words", -1);
    preprocess::merge(parse_options(argc - 1, argv + 1, options, positional));
  } else if (command == "split") {
    preprocess::split(parse_options(argc - 1, argv + 1, preprocess::split_options()));
  } else if (command.empty()) {
    preprocess::encode(parse_options(argc, argv, preprocess::encode_options()));
  } else {
    throw UsageError("unknown command '{}': expected merge or split, or options{}", command,
                     did_you_mean(command, {"merge", "split"}));
  }
  return ExitCode::success;
}

}  // namespace
}  // namespace trireme

int main(int argc, char** argv) {
  return trireme::run_app(trireme::kProgram, argc, argv, trireme::run);
}
