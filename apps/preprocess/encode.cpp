#include <algorithm>
#include <thread>

#include "core/plural.hpp"
#include "preprocess/commands.hpp"
#include "tokenizer/preprocess/preprocess.hpp"
#include "tokenizer_options.hpp"

namespace trireme::preprocess {
namespace {

po::options_description output_options() {
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  po::options_description options("Output");
  options.add_options()  //
      ("output", po::value<std::string>()->required()->value_name("PREFIX"),
       "what the files' names begin with")                                                   //
      ("append-eod", po::bool_switch(), "end each document with the end-of-document token")  //
      ("keep-blank-lines", po::bool_switch(),
       "blank lines of plain text are documents, too, without tokens or an end-of-document token "
       "where nothing stands on them; by default they are left out")  //
      ("skip-bad", po::bool_switch(),
       "leave out lines that cannot be read and count them, instead of stopping at the first")  //
      ("workers", po::value<int>()->default_value(cores)->value_name("N"),
       "tokenizing threads; any number gives the same files")  //
      ("split-sentences", po::bool_switch(), "not built yet")  //
      ("keep-newlines", po::bool_switch(), "not built yet")    //
      ("presplit-sentences", po::bool_switch(),
       "each line of a document is a sentence: a sequence of its own, in "
       "PREFIX_<key>_sentence.bin and .idx");
  return options;
}

}  // namespace

po::options_description encode_options() {
  po::options_description options;
  options.add(document_options()).add(tokenizer_options()).add(output_options());
  return options;
}

void encode(const po::variables_map& values) {
  for (const char* option : {"split-sentences", "keep-newlines"})
    if (values[option].as<bool>()) throw UsageError("--{} is not built yet", option);

  tokenizer::PreprocessOptions work;
  work.source = documents_of(values);
  work.output = values["output"].as<std::string>();
  work.source.keep_blank_lines = values["keep-blank-lines"].as<bool>();
  if (work.source.keep_blank_lines && work.source.format == tokenizer::DocumentFormat::json_lines)
    throw UsageError("--keep-blank-lines is for plain text, not for --format jsonl");
  if (work.source.keep_blank_lines && work.source.format == tokenizer::DocumentFormat::text_files)
    throw UsageError("--keep-blank-lines: with --document file a document is a whole file");
  work.append_eod = values["append-eod"].as<bool>();
  work.presplit_sentences = values["presplit-sentences"].as<bool>();
  work.skip_bad = values["skip-bad"].as<bool>();
  work.workers = values["workers"].as<int>();
  work.log = stderr;
  const auto summary = tokenizer::preprocess(*tokenizer_of(values), work);
  const double megabytes = 1e-6 * static_cast<double>(summary.bytes);
  print_out(fmt::format(
      "{}.{{bin,idx}}: {}, {} from {} in {:.2f} s ({:.1f} MB/s), vocabulary of {}, {} skipped\n",
      summary.dataset.string(), counted(summary.documents, "document"),
      counted(summary.tokens, "token"), counted(summary.bytes, "byte"), summary.seconds,
      megabytes / std::max(summary.seconds, 1e-9), counted(summary.vocab_size, "id"),
      counted(summary.skipped, "bad document")));
}

}  // namespace trireme::preprocess
