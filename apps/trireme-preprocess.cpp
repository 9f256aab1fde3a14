// trireme-preprocess: documents to a dataset of token ids.
#include "tokenizer/preprocess/preprocess.hpp"

#include <thread>

#include "app.hpp"
#include "tokenizer_options.hpp"

namespace trireme {
namespace {

constexpr const char* kProgram = "trireme-preprocess";
constexpr const char* kUsage =
    "Usage: trireme-preprocess --input FILE... --output PREFIX --tokenizer TYPE [options]\n"
    "Writes PREFIX_<key>_document.bin and .idx, a dataset in Megatron-LM's format.\n\n";

po::options_description output_options() {
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  po::options_description options("Output");
  options.add_options()  //
      ("output", po::value<std::string>()->required()->value_name("PREFIX"),
       "what the files' names begin with")                                                   //
      ("append-eod", po::bool_switch(), "end each document with the end-of-document token")  //
      ("skip-bad", po::bool_switch(),
       "leave out lines that cannot be read and count them, instead of stopping at the first")  //
      ("workers", po::value<int>()->default_value(cores)->value_name("N"),
       "tokenizing threads; any number gives the same files")  //
      ("split-sentences", po::bool_switch(), "not built yet")  //
      ("keep-newlines", po::bool_switch(), "not built yet")    //
      ("help,h", "print this and exit")                        //
      ("version", "print the version and exit");
  return options;
}

ExitCode run(int argc, char** argv) {
  po::options_description options;
  options.add(document_options()).add(tokenizer_options()).add(output_options());
  if (answers_help_or_version(argc, argv, kProgram, kUsage, options)) return ExitCode::success;
  const po::variables_map values = parse_options(argc, argv, options);
  for (const char* option : {"split-sentences", "keep-newlines"})
    if (values[option].as<bool>()) throw UsageError("--{} is not built yet", option);

  tokenizer::PreprocessOptions work;
  work.source = documents_of(values);
  work.output = values["output"].as<std::string>();
  work.append_eod = values["append-eod"].as<bool>();
  work.skip_bad = values["skip-bad"].as<bool>();
  work.workers = values["workers"].as<int>();
  work.log = stderr;
  const auto summary = tokenizer::preprocess(*tokenizer_of(values), work);
  const double megabytes = 1e-6 * static_cast<double>(summary.bytes);
  print_out(fmt::format(
      "{}.{{bin,idx}}: {} documents, {} tokens from {} bytes in {:.2f} s ({:.1f} MB/s), "
      "{} bad documents skipped\n",
      summary.dataset.string(), summary.documents, summary.tokens, summary.bytes, summary.seconds,
      megabytes / std::max(summary.seconds, 1e-9), summary.skipped));
  return ExitCode::success;
}

}  // namespace
}  // namespace trireme

int main(int argc, char** argv) {
  return trireme::run_app(trireme::kProgram, argc, argv, trireme::run);
}
