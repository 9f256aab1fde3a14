// trireme-preprocess: tokenizes documents into a dataset, merges datasets, splits documents at
// random, cleans a corpus.
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <thread>

#include "app.hpp"
#include "core/text.hpp"
#include "data/indexed_dataset.hpp"
#include "preprocess/corpus_commands.hpp"
#include "tokenizer/preprocess/preprocess.hpp"
#include "tokenizer_options.hpp"

namespace trireme {
namespace {

constexpr const char* kProgram = "trireme-preprocess";
constexpr const char* kUsage =
    "Usage: trireme-preprocess --input FILE... --output PREFIX --tokenizer TYPE [options]\n"
    "       trireme-preprocess presplit --input FILE... --output FILE [options]\n"
    "       trireme-preprocess urls|clean|dedup --input FILE... --output FILE [options]\n"
    "       trireme-preprocess decontaminate --evaluation FILE... --input FILE... --output FILE\n"
    "       trireme-preprocess shuffle --input FILE... --output FILE [--seed N]\n"
    "       trireme-preprocess merge --output PREFIX PREFIX...\n"
    "       trireme-preprocess npy --input FILE.npy...|PREFIX --output PREFIX|FILE.npy [options]\n"
    "       trireme-preprocess split --input FILE... --output DIR --fractions A,B,C [--seed N]\n"
    "Without a command writes PREFIX_<key>_document.bin and .idx, a dataset in Megatron-LM's\n"
    "format, and .json, which names its tokenizer. presplit writes documents with a sentence per\n"
    "line; urls filters a list of URLs; clean repairs and filters documents; dedup drops copies;\n"
    "decontaminate cuts out what evaluation texts have; shuffle orders lines at random; merge\n"
    "appends datasets to one; npy turns arrays of ids into a dataset and back; split divides JSON\n"
    "lines at random into train, valid and test.\n"
    "Inputs may be compressed (gzip, bzip2, xz, zstd) or be tar archives of *.txt, *.json and\n"
    "*.jsonl, also of such archives.\n\n";

// --- The program without a command: documents to a dataset ---

po::options_description output_options() {
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  po::options_description options("Output");
  options.add_options()  //
      ("output", po::value<std::string>()->required()->value_name("PREFIX"),
       "prefix of the file names")                                                           //
      ("append-eod", po::bool_switch(), "end each document with the end-of-document token")  //
      ("keep-blank-lines", po::bool_switch(),
       "blank lines of plain text are documents; an empty line gives neither tokens nor an "
       "end-of-document token; by default blank lines are dropped")  //
      ("skip-bad", po::bool_switch(),
       "skip and count lines that cannot be read, instead of stopping at the first")  //
      ("workers", po::value<int>()->default_value(cores)->value_name("N"),
       "tokenizing threads; the files do not depend on their number")  //
      ("split-sentences", po::bool_switch(),
       "split documents into sentences: each is a sequence, in PREFIX_<key>_sentence.bin and "
       ".idx")  //
      ("language", po::value<std::string>()->value_name("LANGUAGE"),
       "language of --split-sentences: en (the default), de, fr, es, it, pt, ru, or none for "
       "languages without abbreviations")  //
      ("keep-newlines", po::bool_switch(),
       "with --split-sentences: sentences keep the white space after them")  //
      ("presplit-sentences", po::bool_switch(),
       "each line of a document is a sentence: a sequence, in PREFIX_<key>_sentence.bin and "
       ".idx")  //
      ("train-tokenizer", po::value<int>()->value_name("N"),
       "where the file of --model (sentencepiece, bpe) or --vocab (wordpiece) is missing: train it "
       "on the input, with N pieces");
  return options;
}

po::options_description encode_options() {
  po::options_description options;
  options.add(document_options()).add(tokenizer_options()).add(output_options());
  return options.add(training_options());
}

/// The rules of --language.
const tokenizer::SentenceRules& rules_of(const po::variables_map& values) {
  return tokenizer::sentence_rules(values.count("language") ? values["language"].as<std::string>()
                                                            : "en");
}

/// With --train-tokenizer: trains the tokenizer on the input unless its file exists.
void train_where_missing(const po::variables_map& values, const tokenizer::TokenizerSpec& spec) {
  if (!values.count("train-tokenizer")) {
    for (const char* option : {"model-type", "bert-tokens", "alphabet", "pattern"})
      if (values.count(option) && !values[option].defaulted())
        throw UsageError("--{} is for --train-tokenizer", option);
    return;
  }
  tokenizer::TrainingOptions training = training_of(values, spec.type);
  training.output = spec.type == "wordpiece" ? spec.vocab : spec.model;
  if (training.output.empty())
    throw UsageError(
        "--train-tokenizer needs --tokenizer sentencepiece or bpe with --model, or wordpiece with "
        "--vocab: the file to write");
  std::error_code unknown;
  if (std::filesystem::exists(training.output, unknown)) return;
  training.source = documents_of(values);
  tokenizer::require_rereadable(training.source.inputs, "--train-tokenizer");
  training.size = values["train-tokenizer"].as<int>();
  training.skip_bad = values["skip-bad"].as<bool>();
  const auto summary = tokenizer::train_tokenizer(training);
  print_out(fmt::format("{}: {} from {} in {:.1f} s\n", training.output.string(),
                        counted(training.size, "piece"), counted(summary.lines, "line"),
                        summary.seconds));
}

/// Throws UsageError where the dataset would replace an input, a file of its tokenizer, which may
/// still be missing, or a foreign file.
void refuse_replaced_inputs(const tokenizer::PreprocessOptions& work,
                            const tokenizer::TokenizerSpec& spec) {
  const std::string prefix = tokenizer::dataset_prefix(work);
  std::vector<std::filesystem::path> needed(work.source.inputs.begin(), work.source.inputs.end());
  needed.insert(needed.end(), {spec.vocab, spec.merges, spec.model});
  for (const std::filesystem::path& file : needed)
    for (const char* suffix : {".bin", ".idx", ".json"})
      if (is_same_file(file, prefix + suffix))
        throw UsageError("the dataset would replace '{}', which it is made of; name another output",
                         file.string());
  tokenizer::refuse_foreign_info(prefix);
}

/// The prefix of the dataset that --output names. Throws UsageError when it is none.
std::string prefix_of(const po::variables_map& values) {
  const auto prefix = values["output"].as<std::string>();
  if (prefix.empty() || prefix.ends_with('/'))
    throw UsageError("--output {0}: must be the beginning of file names, such as {0}corpus",
                     prefix);
  return prefix;
}

void encode(const po::variables_map& values) {
  tokenizer::PreprocessOptions work;
  work.source = documents_of(values);
  if (work.source.key.find('/') != std::string::npos)
    throw UsageError("--key {}: it is part of the names of the files and must have no '/'",
                     work.source.key);
  work.output = prefix_of(values);
  work.source.keep_blank_lines = values["keep-blank-lines"].as<bool>();
  using tokenizer::DocumentFormat;
  const DocumentFormat format = work.source.format;
  if (work.source.keep_blank_lines && format == DocumentFormat::json_lines)
    throw UsageError("--keep-blank-lines is for plain text, not for --format jsonl");
  if (work.source.keep_blank_lines && format == DocumentFormat::by_name &&
      std::ranges::all_of(work.source.inputs, is_json_name))
    throw UsageError("--keep-blank-lines is for plain text, not for JSON lines");
  if (work.source.keep_blank_lines &&
      (format == DocumentFormat::text_files || format == DocumentFormat::files_by_name))
    throw UsageError("--keep-blank-lines: with --document file a document is a whole file");
  work.append_eod = values["append-eod"].as<bool>();
  work.presplit_sentences = values["presplit-sentences"].as<bool>();
  const bool split = values["split-sentences"].as<bool>();
  if (!split && values.count("language")) throw UsageError("--language is for --split-sentences");
  if (split) work.split_sentences = &rules_of(values);
  work.keep_newlines = values["keep-newlines"].as<bool>();
  work.skip_bad = values["skip-bad"].as<bool>();
  work.workers = values["workers"].as<int>();
  work.log = stderr;
  work.progress = progress_output(values);
  const tokenizer::TokenizerSpec spec = tokenizer_spec_of(values);
  refuse_replaced_inputs(work, spec);
  train_where_missing(values, spec);
  const auto summary = tokenizer::preprocess(*make_tokenizer(spec), work);
  const double megabytes = 1e-6 * static_cast<double>(summary.bytes);
  print_out(fmt::format(
      "{}.{{bin,idx}}: {}, {} from {} in {:.2f} s ({:.1f} MB/s), vocabulary of {}, {} skipped\n",
      summary.dataset.string(), counted(summary.documents, "document"),
      counted(summary.tokens, "token"), counted(summary.bytes, "byte"), summary.seconds,
      megabytes / std::max(summary.seconds, 1e-9), counted(summary.vocab_size, "id"),
      counted(summary.skipped, "bad document")));
}

// --- presplit ---

po::options_description presplit_options() {
  po::options_description options("presplit");
  options.add_options()  //
      ("output", po::value<std::string>()->required()->value_name("FILE"),
       "the JSON lines to write, with a sentence per line of the text")  //
      ("language", po::value<std::string>()->value_name("LANGUAGE"),
       "as with --split-sentences")  //
      ("standardize-punctuation", po::bool_switch(),
       "write quotes, dashes, ellipses and blanks of all forms in ASCII");
  return options;
}

void presplit(const po::variables_map& values) {
  tokenizer::PresplitOptions work;
  work.source = documents_of(values);
  work.output = output_of(values, "output", work.source.inputs);
  work.rules = &rules_of(values);
  work.standardize_punctuation = values["standardize-punctuation"].as<bool>();
  work.progress = progress_output(values);
  const auto summary = tokenizer::presplit(work);
  print_out(fmt::format("{}: {}, {}\n", work.output.string(),
                        counted(summary.documents, "document"),
                        counted(summary.sentences, "sentence")));
}

// --- merge ---

po::options_description merge_options() {
  po::options_description options("merge");
  options.add_options()  //
      ("output", po::value<std::string>()->required()->value_name("PREFIX"),
       "the dataset to write: PREFIX.bin and PREFIX.idx, and PREFIX.json where all inputs have "
       "one");
  return options;
}

void merge(const po::variables_map& values) {
  std::vector<std::filesystem::path> inputs;
  if (values.count("words") > 0)
    for (const std::string& word : values["words"].as<std::vector<std::string>>())
      inputs.emplace_back(word);
  // data/* of a shell names both files of a dataset.
  std::set<std::filesystem::path> given(inputs.begin(), inputs.end());
  for (const std::filesystem::path& input : inputs) {
    std::filesystem::path other = input;
    if (input.extension() == ".bin" && given.contains(other.replace_extension(".idx")))
      throw UsageError("'{}' and '{}' are one dataset: name it once", input.string(),
                       other.string());
  }
  const auto output = values["output"].as<std::string>();
  const data::MergeSummary summary = data::merge_datasets(inputs, output, progress_output(values));
  print_out(fmt::format("{}.{{bin,idx}}: {}, {}, {} from {}\n", output,
                        counted(summary.documents, "document"),
                        counted(summary.sequences, "sequence"), counted(summary.tokens, "token"),
                        counted(inputs.size(), "dataset")));
  if (summary.without_info)
    print_out(fmt::format("no {}.json: '{}' has none that names its tokenizer\n", output,
                          summary.without_info->string()));
}

// --- npy ---

po::options_description npy_options() {
  po::options_description options("npy");
  options.add_options()  //
      ("input",
       po::value<std::vector<std::string>>()->required()->multitoken()->value_name("FILE..."),
       "arrays of ids (*.npy), or the prefix of a dataset")  //
      ("output", po::value<std::string>()->required()->value_name("PREFIX|FILE"),
       "prefix of the dataset to write, or an array (*.npy)")  //
      ("vocab-size", po::value<std::int32_t>()->default_value(0)->value_name("N"),
       "number of ids of the vocabulary; arrays become 16-bit datasets below 65500")  //
      ("eod", po::value<std::int32_t>()->value_name("ID"),
       "ends the documents of arrays of one axis; without it an array is a document")  //
      ("pad", po::value<std::int32_t>()->value_name("ID"),
       "fills the rows of arrays of two axes, which are documents; it is left out");
  return options;
}

void convert_npy(const po::variables_map& values) {
  const auto inputs = values["input"].as<std::vector<std::string>>();
  const std::string output = prefix_of(values);
  const auto id_of = [&](const char* option) {
    return values.count(option) ? std::optional(values[option].as<std::int32_t>()) : std::nullopt;
  };
  data::ArraySummary summary;
  if (output.ends_with(".npy")) {
    if (inputs.size() != 1) throw UsageError("an array is written from one dataset");
    for (const char* option : {"eod", "pad", "vocab-size"})
      if (values.count(option) && !values[option].defaulted())
        throw UsageError("--{} is for reading arrays", option);
    summary = data::export_array(inputs.front(), output);
  } else {
    for (const std::string& input : inputs)
      if (std::filesystem::exists(data::dataset_prefix(input).string() + ".idx"))
        throw UsageError("'{}' is a dataset: the array that it becomes needs --output FILE.npy",
                         input);
    summary = data::import_arrays({.inputs = {inputs.begin(), inputs.end()},
                                   .output = output,
                                   .vocab_size = values["vocab-size"].as<std::int32_t>(),
                                   .eod = id_of("eod"),
                                   .pad = id_of("pad"),
                                   .progress = progress_output(values)});
  }
  print_out(fmt::format("{}: {}, {}\n", output, counted(summary.documents, "document"),
                        counted(summary.tokens, "token")));
}

// --- split ---

std::vector<double> parse_fractions(const std::string& text) {
  std::vector<double> fractions;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    try {
      fractions.push_back(deck::parse_real(std::string_view(text).substr(at, end - at)));
    } catch (const deck::BadValue&) {
      throw UsageError("--fractions {}: expected numbers, such as 0.95,0.04,0.01", text);
    }
    at = end + 1;
  }
  return fractions;
}

po::options_description split_options() {
  po::options_description options("split");
  options.add_options()  //
      ("input",
       po::value<std::vector<std::string>>()->required()->multitoken()->value_name("FILE..."),
       "JSON lines, compressed or not")  //
      ("output", po::value<std::string>()->required()->value_name("DIR"),
       "folder for train.jsonl, valid.jsonl and test.jsonl, and the .lines files with the source "
       "of each line")  //
      ("fractions", po::value<std::string>()->required()->value_name("A,B,C"),
       "of train, valid and test")  //
      ("seed", po::value<std::int64_t>()->default_value(1234)->value_name("N"),
       "seed of the random split");
  return options;
}

void split(const po::variables_map& values) {
  data::LineSplitOptions work;
  work.inputs = values["input"].as<std::vector<std::string>>();
  work.folder = values["output"].as<std::string>();
  work.fractions = parse_fractions(values["fractions"].as<std::string>());
  work.seed = values["seed"].as<std::int64_t>();
  work.progress = progress_output(values);
  const data::LineCounts counts = data::split_lines(work);
  for (std::size_t part = 0; part < counts.size(); ++part)
    if (counts[part] > 0)
      print_out(fmt::format("{}/{}.jsonl: {}\n", work.folder.string(),
                            data::name_of(static_cast<data::Split>(part)),
                            counted(counts[part], "line")));
}

ExitCode run(int argc, char** argv) {
  po::options_description all;
  all.add(encode_options())
      .add(presplit_options())
      .add(merge_options())
      .add(npy_options())
      .add(split_options());
  add_corpus_options(all);
  all.add(general_options());
  if (answers_help_or_version(argc, argv, kProgram, kUsage, all)) return ExitCode::success;

  const std::string command = argc > 1 && argv[1][0] != '-' ? argv[1] : "";
  if (command == "merge") {
    po::options_description options = merge_options();
    options.add_options()("words", po::value<std::vector<std::string>>());
    po::positional_options_description positional;
    positional.add("words", -1);
    merge(parse_options(argc - 1, argv + 1, options, positional));
  } else if (command == "presplit") {
    po::options_description options;
    presplit(
        parse_options(argc - 1, argv + 1, options.add(document_options()).add(presplit_options())));
  } else if (command == "npy") {
    convert_npy(parse_options(argc - 1, argv + 1, npy_options()));
  } else if (command == "split") {
    split(parse_options(argc - 1, argv + 1, split_options()));
  } else if (is_corpus_command(command)) {
    run_corpus_command(argc - 1, argv + 1);
  } else if (command.empty()) {
    encode(parse_options(argc, argv, encode_options()));
  } else {
    if (std::filesystem::exists(command))
      throw UsageError("'{}' is a file: give it as --input {}", command, command);
    const std::vector<std::string_view> commands = {
        "presplit", "urls", "clean", "dedup", "decontaminate", "shuffle", "merge", "npy", "split"};
    throw UsageError("unknown command '{}': expected {}, or options{}", command,
                     fmt::join(commands, ", "), did_you_mean(command, commands));
  }
  return ExitCode::success;
}

}  // namespace
}  // namespace trireme

int main(int argc, char** argv) {
  return trireme::run_app(trireme::kProgram, argc, argv, trireme::run);
}
