#include "preprocess/corpus_commands.hpp"

#include <algorithm>
#include <thread>

#include "corpus/corpus.hpp"
#include "tokenizer_options.hpp"

namespace trireme {
namespace {

using Strings = std::vector<std::string>;

po::options_description stream_options() {
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  po::options_description options("urls, clean, dedup, decontaminate");
  options.add_options()  //
      ("output", po::value<std::string>()->required()->value_name("FILE"),
       "the JSON lines to write; urls: the list")  //
      ("dropped", po::value<std::string>()->default_value("")->value_name("FILE"),
       "the dropped documents as JSON lines, each with its \"reason\"")  //
      ("report", po::value<std::string>()->default_value("")->value_name("FILE"),
       "what was dropped and why, as JSON")  //
      ("skip-bad", po::bool_switch(),
       "drop documents that cannot be read, instead of stopping at the first")  //
      ("workers", po::value<int>()->default_value(cores)->value_name("N"),
       "threads; the files do not depend on their number");
  return options;
}

corpus::StreamOptions stream_of(const po::variables_map& values) {
  corpus::StreamOptions stream;
  stream.source = documents_of(values);
  std::vector<std::string> taken = stream.source.inputs;
  for (const char* option : {"block-domains", "block-suffixes", "evaluation"})
    if (values.count(option))
      for (const std::string& path : values[option].as<Strings>()) taken.push_back(path);
  for (const char* option : {"vocab", "merges", "model"})
    if (values.count(option)) taken.push_back(values[option].as<std::string>());
  stream.output = output_of(values, "output", taken);
  std::vector<std::string> outputs = {stream.output.string()};
  for (const auto& [option, path] :
       {std::pair("dropped", &stream.dropped), std::pair("report", &stream.report)}) {
    if (values[option].defaulted()) continue;
    *path = output_of(values, option, taken, outputs);
    outputs.push_back(path->string());
  }
  stream.skip_bad = values["skip-bad"].as<bool>();
  stream.workers = values["workers"].as<int>();
  stream.progress = progress_output(values);
  return stream;
}

void print(const corpus::Report& report) {
  print_out(report.table());
  print_out(fmt::format("{:.1f} MB in {:.2f} s ({:.1f} MB/s)\n", 1e-6 * double(report.bytes),
                        report.seconds,
                        1e-6 * double(report.bytes) / std::max(report.seconds, 1e-9)));
}

/// A whole number that must not be negative.
std::uint64_t count_of(const po::variables_map& values, const char* option) {
  const auto value = values[option].as<std::int64_t>();
  if (value < 0) throw UsageError("--{} {}: expected 0 or more", option, value);
  return static_cast<std::uint64_t>(value);
}

// --- urls ---

po::options_description url_options() {
  po::options_description options("urls, clean: in addition to the built-in lists");
  options.add_options()  //
      ("block-domains", po::value<Strings>()->multitoken()->value_name("FILE..."),
       "names of domains, one a line: example drops www.example.com and example.co.uk")  //
      ("block-suffixes", po::value<Strings>()->multitoken()->value_name("FILE..."),
       "suffixes of files, one a line: pdf");
  return options;
}

corpus::UrlFilter url_filter_of(const po::variables_map& values) {
  corpus::UrlFilter filter;
  if (values.count("block-domains"))
    for (const std::string& path : values["block-domains"].as<Strings>()) filter.add_domains(path);
  if (values.count("block-suffixes"))
    for (const std::string& path : values["block-suffixes"].as<Strings>())
      filter.add_suffixes(path);
  return filter;
}

void filter_urls(const po::variables_map& values) {
  corpus::StreamOptions stream = stream_of(values);
  if (stream.source.format == tokenizer::DocumentFormat::by_name)
    stream.source.format = tokenizer::DocumentFormat::text_lines;
  print(corpus::filter_urls(stream, url_filter_of(values)));
}

// --- clean ---

po::options_description clean_options() {
  po::options_description options("clean");
  options.add_options()  //
      ("url-key", po::value<std::string>()->default_value("url")->value_name("KEY"),
       "key of the URL in JSON lines; documents without it pass")                     //
      ("no-urls", po::bool_switch(), "keep documents of any URL, and of equal ones")  //
      ("no-repair", po::bool_switch(), "leave the text as it is")                     //
      ("decode-bytes-literals", po::bool_switch(),
       "decode texts that are Python literals of bytes, b'...'")  //
      ("language", po::value<std::string>()->default_value("en")->value_name("CODE"),
       "keep documents of this language, or any")  //
      ("min-characters", po::value<std::int64_t>()->default_value(0)->value_name("N"),
       "drop documents of fewer characters")  //
      ("min-javascript", po::value<std::int64_t>()->default_value(256)->value_name("N"),
       "drop documents of fewer characters that say javascript")  //
      ("min-tokens", po::value<std::int64_t>()->default_value(128)->value_name("N"),
       "drop documents of fewer tokens, of --tokenizer or else words and runs of punctuation; "
       "documents of 8 N characters are long enough")                                      //
      ("tokenizer", po::value<std::string>()->value_name("TYPE"), "as without a command")  //
      ("vocab", po::value<std::string>()->value_name("FILE"), "vocabulary")                //
      ("merges", po::value<std::string>()->value_name("FILE"), "merges")                   //
      ("model", po::value<std::string>()->value_name("FILE"), "model")                     //
      ("lowercase", po::value<bool>()->value_name("true|false"), "uncased vocabulary");
  return options;
}

void clean(const po::variables_map& values) {
  corpus::CleanOptions work;
  for (const char* option : {"url-key", "block-domains", "block-suffixes"})
    if (values["no-urls"].as<bool>() && values.count(option) && !values[option].defaulted())
      throw UsageError("--{} has no effect with --no-urls, which keeps documents of any URL",
                       option);
  work.stream = stream_of(values);
  const corpus::UrlFilter filter = url_filter_of(values);
  work.urls = values["no-urls"].as<bool>() ? nullptr : &filter;
  work.url_key = values["url-key"].as<std::string>();
  work.repair = !values["no-repair"].as<bool>();
  work.decode_bytes = values["decode-bytes-literals"].as<bool>();
  work.language = values["language"].as<std::string>();
  work.min_characters = count_of(values, "min-characters");
  work.min_javascript = count_of(values, "min-javascript");
  work.min_tokens = count_of(values, "min-tokens");
  std::unique_ptr<tokenizer::Tokenizer> tokenizer;
  if (values.count("tokenizer")) tokenizer = make_tokenizer(tokenizer_spec_of(values));
  for (const char* option : {"vocab", "merges", "model", "lowercase"})
    if (!tokenizer && values.count(option)) throw UsageError("--{} is for --tokenizer", option);
  work.tokenizer = tokenizer.get();
  print(corpus::clean(work));
}

// --- dedup ---

po::options_description dedup_options() {
  po::options_description options("dedup");
  options.add_options()                                       //
      ("exact", po::bool_switch(), "drop exact copies only")  //
      ("seed", po::value<std::int64_t>()->default_value(1234)->value_name("N"),
       "seed of the hash functions and of the documents that others are compared with")  //
      ("hashes", po::value<int>()->default_value(100)->value_name("N"),
       "MinHash functions")  //
      ("bands", po::value<int>()->default_value(10)->value_name("N"),
       "parts of a signature; documents with an equal part are compared")  //
      ("jaccard", po::value<std::string>()->default_value("union")->value_name("RULE"),
       "divide the common shingles by those of the union, or of the smaller (min) or larger (max) "
       "document")  //
      ("similar", po::value<double>()->default_value(0.5)->value_name("S"),
       "above this similarity a document is compared no further in its bucket")  //
      ("duplicate", po::value<double>()->default_value(0.8, "0.8")->value_name("S"),
       "from this similarity on, documents are duplicates")  //
      ("rounds", po::value<int>()->default_value(1)->value_name("N"),
       "documents per bucket that the others are compared with, chosen at random; -1: all");
  return options;
}

void dedup(const po::variables_map& values) {
  corpus::DedupOptions work;
  work.stream = stream_of(values);
  work.seed = count_of(values, "seed");
  work.near = !values["exact"].as<bool>();
  for (const char* option :
       {"seed", "hashes", "bands", "jaccard", "similar", "duplicate", "rounds"})
    if (!work.near && !values[option].defaulted())
      throw UsageError("--{} has no effect with --exact, which compares whole documents", option);
  work.hashes = values["hashes"].as<int>();
  work.bands = values["bands"].as<int>();
  work.similar = values["similar"].as<double>();
  work.duplicate = values["duplicate"].as<double>();
  work.rounds = values["rounds"].as<int>();
  const auto rule = values["jaccard"].as<std::string>();
  if (rule != "union" && rule != "min" && rule != "max")
    throw UsageError("--jaccard {}: expected union, min or max", rule);
  work.rule = rule == "min"   ? corpus::JaccardRule::smaller
              : rule == "max" ? corpus::JaccardRule::larger
                              : corpus::JaccardRule::union_of_both;
  print(corpus::dedup(work));
}

// --- decontaminate ---

po::options_description decontaminate_options() {
  po::options_description options("decontaminate");
  options.add_options()  //
      ("evaluation", po::value<Strings>()->required()->multitoken()->value_name("FILE..."),
       "evaluation texts: JSON lines, or *.txt with a text per line")  //
      ("evaluation-key", po::value<std::string>()->default_value("text")->value_name("KEY"),
       "key of the text in their JSON lines")  //
      ("max-ngram", po::value<std::int64_t>()->default_value(13)->value_name("N"),
       "words of an n-gram")  //
      ("min-ngram", po::value<std::int64_t>()->default_value(8)->value_name("N"),
       "evaluation texts of fewer words are left out; shorter ones than an n-gram are looked up "
       "whole")  //
      ("max-count", po::value<std::int64_t>()->default_value(10)->value_name("N"),
       "n-grams that the input has N times or more are no contamination; 0: all are, and the input "
       "is read once")  //
      ("margin", po::value<std::int64_t>()->default_value(200)->value_name("N"),
       "characters cut on each side of an n-gram, and up to the end of that sentence")  //
      ("min-part", po::value<std::int64_t>()->default_value(200)->value_name("N"),
       "parts of no more characters are dropped")  //
      ("max-parts", po::value<std::int64_t>()->default_value(10)->value_name("N"),
       "documents that are cut into more parts are dropped");
  return options;
}

void decontaminate(const po::variables_map& values) {
  corpus::ContaminationOptions work;
  work.stream = stream_of(values);
  work.evaluation.inputs = values["evaluation"].as<Strings>();
  work.evaluation.key = values["evaluation-key"].as<std::string>();
  work.rules.max_ngram = count_of(values, "max-ngram");
  work.rules.min_ngram = count_of(values, "min-ngram");
  work.rules.max_count = count_of(values, "max-count");
  work.rules.margin = count_of(values, "margin");
  work.rules.min_characters = count_of(values, "min-part");
  work.rules.max_parts = count_of(values, "max-parts");
  print(corpus::decontaminate(work));
}

// --- shuffle ---

po::options_description shuffle_options() {
  po::options_description options("shuffle");
  options.add_options()  //
      ("output", po::value<std::string>()->required()->value_name("FILE"),
       "the lines of all inputs in a random order")  //
      ("seed", po::value<std::int64_t>()->default_value(1234)->value_name("N"),
       "seed of the order");
  return options;
}

void shuffle(const po::variables_map& values) {
  corpus::ShuffleOptions work;
  work.source = documents_of(values);
  work.output = output_of(values, "output", work.source.inputs);
  work.seed = count_of(values, "seed");
  work.progress = progress_output(values);
  const std::uint64_t lines = corpus::shuffle(work);
  print_out(fmt::format("{}: {}\n", work.output.string(), counted(lines, "line")));
}

}  // namespace

void add_corpus_options(po::options_description& options) {
  options.add(stream_options()).add(url_options()).add(clean_options()).add(dedup_options());
  options.add(decontaminate_options()).add(shuffle_options());
}

bool is_corpus_command(const std::string& command) {
  for (const char* name : {"urls", "clean", "dedup", "decontaminate", "shuffle"})
    if (command == name) return true;
  return false;
}

void run_corpus_command(int argc, char** argv) {
  const std::string command = argv[0];
  po::options_description options = document_options();
  if (command == "shuffle")
    return shuffle(parse_options(argc, argv, options.add(shuffle_options())));
  options.add(stream_options());
  if (command == "urls") return filter_urls(parse_options(argc, argv, options.add(url_options())));
  if (command == "dedup") return dedup(parse_options(argc, argv, options.add(dedup_options())));
  if (command == "decontaminate")
    return decontaminate(parse_options(argc, argv, options.add(decontaminate_options())));
  clean(parse_options(argc, argv, options.add(url_options()).add(clean_options())));
}

}  // namespace trireme
