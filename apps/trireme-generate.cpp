// trireme-generate: continues prompts with the model of a checkpoint.
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/files.hpp"
#include "generate/batch_generator.hpp"
#include "generate/beam_search.hpp"
#include "generate/decoder.hpp"
#include "generate/text_stream.hpp"
#include "line_editor.hpp"
#include "model_options.hpp"
#include "tokenizer/preprocess/documents.hpp"
#include "tokenizer/utf8.hpp"

namespace trireme {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kProgram = "trireme-generate";
constexpr const char* kUsage =
    "Usage: trireme-generate --checkpoint PATH [--prompt TEXT... | --input FILE] [options]\n"
    "Continues each prompt with the model of a checkpoint, on one process or under mpirun on "
    "tensor\n"
    "and pipeline ranks. Without --prompt and --input the prompts are the lines of standard "
    "input,\n"
    "on a terminal interactively: Ctrl-C stops a text, Ctrl-D ends. An empty prompt, or\n"
    "--unconditional, starts a new document. OMP_NUM_THREADS sets the number of threads.\n\n";

// ---------------------------------------------------------------------------- options

po::options_description work_options() {
  po::options_description options("Prompts and output");
  options.add_options()  //
      ("prompt", po::value<std::vector<std::string>>()->value_name("TEXT"),
       "a text to continue; may be repeated")  //
      ("input", po::value<std::string>()->value_name("FILE"),
       "a file with a prompt per line, empty lines are skipped; *.jsonl: JSON lines with a "
       "\"prompt\"; - is standard input")                                   //
      ("unconditional", po::bool_switch(), "start new documents")           //
      ("interactive", po::bool_switch(), "read prompts from the terminal")  //
      ("samples", po::value<std::int64_t>()->default_value(1)->value_name("N"),
       "continuations per prompt (elsewhere num_return_sequences, n)")  //
      ("batch", po::value<std::int64_t>()->default_value(8)->value_name("N"),
       "sequences at a time; does not change their texts")  //
      ("output", po::value<std::string>()->value_name("FILE"),
       "write to this file instead of standard output")  //
      ("json", po::bool_switch(),
       "print a JSON object per continuation: prompt, text (added), tokens (ids of the text), "
       "finished (whether the document ended), stop (eod, tokens, context or stop)")  //
      ("logprobs", po::value<int>()->value_name("N"),
       "with --json: the log-probability of each token, and the N most likely ones in its place");
  return options;
}

po::options_description sampling_options() {
  const generate::Sampling defaults;
  po::options_description options("Sampling");
  options.add_options()  //
      ("tokens", po::value<std::int64_t>()->default_value(64)->value_name("N"),
       "maximum of tokens to add (elsewhere max_new_tokens, out-seq-length); fewer if the document "
       "ends or the model's context is full")  //
      ("stop", po::value<std::vector<std::string>>()->value_name("TEXT"),
       "end where the text has this, which is left out; may be repeated")  //
      ("greedy", po::bool_switch(), "always take the most likely token")   //
      ("temperature", po::value<double>()->default_value(defaults.temperature)->value_name("X"),
       "divide the logits by X: below 1 less varied, above 1 more varied")  //
      ("top-k", po::value<std::int64_t>()->default_value(defaults.top_k)->value_name("K"),
       "keep the K most likely tokens; 0 keeps all")  //
      ("top-p", po::value<double>()->default_value(defaults.top_p)->value_name("P"),
       "then keep the smallest set of most likely tokens whose probability exceeds P; 1 keeps "
       "all")  //
      ("min-p", po::value<double>()->default_value(defaults.min_p)->value_name("P"),
       "then keep tokens at least P times as likely as the most likely one; 0 keeps all")  //
      ("repetition-penalty",
       po::value<double>()->default_value(defaults.repetition_penalty)->value_name("X"),
       "lower the logits of tokens that the text has: positive ones are divided by X, others "
       "multiplied; 1: none")  //
      ("seed",
       po::value<std::int64_t>()
           ->default_value(static_cast<std::int64_t>(defaults.seed))
           ->value_name("S"),
       "seed; random numbers depend only on it, the sample and the position")  //
      ("beams", po::value<int>()->value_name("N"),
       "beam search with N beams instead of sampling (elsewhere num_beams, beam_width)")  //
      ("length-penalty", po::value<double>()->default_value(1.0)->value_name("X"),
       "beam search: log-probabilities are divided by length^X")  //
      ("recompute", po::bool_switch(),
       "recompute all positions for each token instead of using the KV cache");
  return options;
}

std::int64_t at_least_one(const po::variables_map& values, const char* option) {
  const auto value = values[option].as<std::int64_t>();
  if (value < 1 || value > 1'000'000'000)
    throw UsageError("--{} {}: expected 1 or more", option, value);
  return value;
}

generate::Sampling sampling_of(const po::variables_map& values) {
  const generate::Sampling sampling{
      .greedy = values["greedy"].as<bool>(),
      .temperature = values["temperature"].as<double>(),
      .top_k = values["top-k"].as<std::int64_t>(),
      .top_p = values["top-p"].as<double>(),
      .min_p = values["min-p"].as<double>(),
      .repetition_penalty = values["repetition-penalty"].as<double>(),
      .seed = static_cast<std::uint64_t>(values["seed"].as<std::int64_t>())};
  generate::check_sampling(sampling);
  if (sampling.greedy)
    for (const char* option : {"temperature", "top-k", "top-p", "min-p", "seed", "samples"})
      if (!values[option].defaulted())
        throw UsageError("--{} has no effect with --greedy, which does not sample", option);
  return sampling;
}

/// Options that exclude each other. Throws UsageError.
void check_options(const po::variables_map& values) {
  for (const char* option : {"samples", "batch", "tokens"}) at_least_one(values, option);
  const auto together = [&](const char* a, const char* b) {
    throw UsageError("--{} and --{}: give one of them", a, b);
  };
  const bool interactive = values["interactive"].as<bool>();
  for (const char* source : {"prompt", "input"}) {
    if (!values.count(source)) continue;
    if (interactive) together(source, "interactive");
    if (values["unconditional"].as<bool>()) together(source, "unconditional");
  }
  if (values.count("prompt") && values.count("input")) together("prompt", "input");
  if (values.count("logprobs")) {
    if (!values["json"].as<bool>()) throw UsageError("--logprobs belongs to --json");
    if (const int count = values["logprobs"].as<int>(); count < 0 || count > 1000)
      throw UsageError("--logprobs {}: expected 0 to 1000", count);
  }
  if (!values.count("beams")) {
    if (!values["length-penalty"].defaulted())
      throw UsageError("--length-penalty belongs to --beams");
    return;
  }
  const int beams = values["beams"].as<int>();
  if (beams < 1 || beams > 1000) throw UsageError("--beams {}: expected 1 to 1000", beams);
  for (const char* option :
       {"temperature", "top-k", "top-p", "min-p", "repetition-penalty", "seed"})
    if (!values[option].defaulted())
      throw UsageError("--{} has no effect with --beams, which does not sample", option);
  if (values["greedy"].as<bool>()) together("greedy", "beams");
  if (values["recompute"].as<bool>()) together("recompute", "beams");
  if (values.count("logprobs")) together("logprobs", "beams");
  if (interactive) together("interactive", "beams");
  if (values["samples"].as<std::int64_t>() > beams)
    throw UsageError("--samples {}: --beams {} gives no more than {}",
                     values["samples"].as<std::int64_t>(), beams, beams);
}

// ---------------------------------------------------------------------------- prompts

struct Prompt {
  std::string text;
  std::vector<std::int32_t> ids;
};

/// The prompts in the lines of `stream` that are not empty; `json`: under "prompt".
std::vector<Prompt> read_lines(std::istream& stream, const std::string& name, bool json) {
  std::vector<Prompt> prompts;
  std::int64_t number = 0;
  for (std::string line; std::getline(stream, line);) {
    ++number;
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty()) continue;
    prompts.push_back(
        {.text =
             json ? tokenizer::json_text(line, "prompt", fmt::format("{}:{}", name, number)) : line,
         .ids = {}});
  }
  if (stream.bad()) throw IoError("cannot read {}", name);
  return prompts;
}

std::vector<Prompt> read_prompts(const po::variables_map& values) {
  if (values["unconditional"].as<bool>()) return {Prompt{}};
  std::vector<Prompt> prompts;
  if (values.count("prompt")) {
    for (const std::string& text : values["prompt"].as<std::vector<std::string>>())
      prompts.push_back({.text = text, .ids = {}});
    return prompts;
  }
  const std::string input = values.count("input") ? values["input"].as<std::string>() : "";
  if (input.empty() || input == "-") {
    prompts = read_lines(std::cin, "standard input", false);
    if (input.empty() && prompts.empty()) prompts.emplace_back();
  } else {
    std::istringstream lines(read_file(input));
    prompts = read_lines(lines, input, input.ends_with(".jsonl"));
  }
  if (prompts.empty()) throw DataError("--input {}: there is no prompt in it", input);
  return prompts;
}

/// The ids of a prompt; those of an empty one start a document.
std::vector<std::int32_t> encode(const tokenizer::Tokenizer& tokenizer, const std::string& text) {
  std::vector<std::int32_t> ids = tokenizer.encode(text);
  if (!ids.empty()) return ids;
  if (!tokenizer.eod())
    throw UsageError(
        "the prompt is empty, and the tokenizer has no end-of-document token to begin a document "
        "with");
  return {*tokenizer.eod()};
}

// ---------------------------------------------------------------------------- output

/// Prints to standard output, or gathers everything for one file.
class Output {
 public:
  explicit Output(const po::variables_map& values) {
    if (values.count("output")) path_ = values["output"].as<std::string>();
  }
  void write(const std::string& text) {
    if (!path_.empty()) {
      gathered_ += text;
      return;
    }
    print_out(text);
    std::fflush(stdout);
  }
  void finish() const {
    if (!path_.empty()) write_file_atomically(path_, gathered_);
  }

 private:
  std::string path_;
  std::string gathered_;
};

/// A continuation as it is printed.
struct Result {
  std::string text;
  generate::Continuation continuation;
  std::optional<double> score = std::nullopt;  ///< of a beam
};

Json json_of(const tokenizer::Tokenizer& tokenizer, const generate::TokenScore& score) {
  return {{"token", tokenizer.decode(std::array{score.id})},
          {"id", score.id},
          {"logprob", score.log_probability}};
}

std::string json_line(const Prompt& prompt, const Result& result,
                      const tokenizer::Tokenizer& tokenizer) {
  const generate::Continuation& continuation = result.continuation;
  Json object = {{"prompt", prompt.text},
                 {"text", result.text},
                 {"tokens", continuation.ids},
                 {"finished", continuation.stop == generate::Stop::eod},
                 {"stop", generate::name_of(continuation.stop)}};
  if (result.score) object["score"] = *result.score;
  if (!continuation.tokens.empty()) {
    Json tokens = Json::array();
    for (const generate::ChosenToken& token : continuation.tokens) {
      Json one = json_of(tokenizer, token.score);
      if (!token.alternatives.empty()) one["top"] = Json::array();
      for (const auto& other : token.alternatives) one["top"].push_back(json_of(tokenizer, other));
      tokens.push_back(std::move(one));
    }
    object["logprobs"] = std::move(tokens);
  }
  return object.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

/// Prints the results in the order of prompts and samples.
class Printer {
 public:
  Printer(const po::variables_map& values, const std::vector<Prompt>& prompts,
          const tokenizer::Tokenizer& tokenizer)
      : prompts_(prompts),
        tokenizer_(tokenizer),
        output_(values),
        samples_(values["samples"].as<std::int64_t>()),
        json_(values["json"].as<bool>()),
        several_(samples_ > 1 || prompts.size() > 1) {}

  /// Whether the one text is printed piece by piece.
  bool streams() const { return !json_ && !several_; }
  void begin() {
    output_.write(tokenizer::replace_invalid_utf8(prompts_.front().text));
    begun_ = true;
  }
  void piece(const std::string& text) { output_.write(text); }

  void add(std::size_t number, Result result) {
    results_.resize(std::max(results_.size(), number + 1));
    results_[number] = std::move(result);
    for (; next_ < results_.size() && results_[next_]; ++next_) print(next_);
  }
  void finish() const { output_.finish(); }

 private:
  void print(std::size_t number) {
    const auto prompt = number / samples_, sample = number % samples_;
    const Result result = std::move(*results_[number]);
    if (json_) return output_.write(json_line(prompts_[prompt], result, tokenizer_));
    if (several_) output_.write(fmt::format("--- prompt {}, sample {}\n", prompt + 1, sample + 1));
    output_.write(
        (begun_ ? "" : tokenizer::replace_invalid_utf8(prompts_[prompt].text) + result.text) +
        "\n");
    if (result.continuation.stop == generate::Stop::context)
      std::fputs("(stopped at the end of the model's context)\n", stderr);
  }

  const std::vector<Prompt>& prompts_;
  const tokenizer::Tokenizer& tokenizer_;
  Output output_;
  std::size_t samples_;
  bool json_, several_, begun_ = false;
  std::vector<std::optional<Result>> results_;
  std::size_t next_ = 0;
};

// ---------------------------------------------------------------------------- program

std::atomic<bool> interrupted = false;

/// Generates with the model on the first rank.
class Run {
 public:
  Run(const po::variables_map& values, InferenceModel& model, generate::BatchDecoder* decoder)
      : values_(values), model_(model), decoder_(decoder) {
    request_ = {.tokens = values["tokens"].as<std::int64_t>(),
                .sampling = sampling_of(values),
                .vocab = model.tokenizer->vocab_size(),
                .eod = model.tokenizer->eod()};
    if (values.count("logprobs")) request_.alternatives = values["logprobs"].as<int>();
    if (values.count("stop")) stops_ = values["stop"].as<std::vector<std::string>>();
  }

  void prompts(std::vector<Prompt> prompts) {
    const std::int64_t capacity = model_.spec.embedding.positions;
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      prompts[i].ids = encode(*model_.tokenizer, prompts[i].text);
      if (std::ssize(prompts[i].ids) >= capacity)
        throw DataError(
            "{}the prompt has {} tokens, but the model's context holds {} (model.positions), of "
            "which one at least is for the continuation",
            prompts.size() > 1 ? fmt::format("prompt {}: ", i + 1) : "", prompts[i].ids.size(),
            capacity);
    }
    Printer printer(values_, prompts, *model_.tokenizer);
    if (values_.count("beams"))
      beams(prompts, printer);
    else if (!decoder_)
      without_cache(prompts, printer);
    else
      batch(prompts, printer);
    printer.finish();
  }

  /// Reads prompts from the terminal until its end.
  void interactive() {
    std::signal(SIGINT, [](int) { interrupted = true; });
    generate::BatchGenerator generator(*decoder_);
    std::uint64_t sample = 0;
    while (const auto line = edited_line("prompt> ")) {
      interrupted = false;
      if (line->empty()) continue;
      try {
        const auto ids = encode(*model_.tokenizer, *line);
        generate::TextStream stream(*model_.tokenizer, ids, stops_);
        generator.submit({.prompt = ids,
                          .request = request_,
                          .sample = sample++,
                          .on_token = [&](const generate::ChosenToken& token) {
                            print(stream.push(token.score.id));
                            return !stream.stopped() && !interrupted;
                          }});
        print(*line);
        while (generator.step()) {
        }
        print(stream.finish() + "\n");
      } catch (const DataError& error) {
        std::fputs(fmt::format("{}\n", error.what()).c_str(), stderr);
      }
    }
    print("\n");
  }

 private:
  static void print(const std::string& text) {
    print_out(text);
    std::fflush(stdout);
  }

  void batch(const std::vector<Prompt>& prompts, Printer& printer) {
    const auto samples = values_["samples"].as<std::int64_t>();
    generate::BatchGenerator generator(*decoder_);
    std::vector<std::unique_ptr<generate::TextStream>> streams;
    if (printer.streams()) printer.begin();
    for (const Prompt& prompt : prompts)
      for (std::int64_t sample = 0; sample < samples; ++sample) {
        const std::size_t number = streams.size();
        streams.push_back(
            std::make_unique<generate::TextStream>(*model_.tokenizer, prompt.ids, stops_));
        generate::TextStream* stream = streams.back().get();
        generator.submit({.prompt = prompt.ids,
                          .request = request_,
                          .sample = static_cast<std::uint64_t>(sample),
                          .on_token =
                              [&printer, stream](const generate::ChosenToken& token) {
                                const std::string piece = stream->push(token.score.id);
                                if (printer.streams()) printer.piece(piece);
                                return !stream->stopped();
                              },
                          .on_end =
                              [&printer, stream, number](generate::Continuation continuation) {
                                const std::string rest = stream->finish();
                                if (printer.streams()) printer.piece(rest);
                                printer.add(number, {stream->text(), std::move(continuation)});
                              }});
      }
    while (generator.step()) {
    }
  }

  void beams(const std::vector<Prompt>& prompts, Printer& printer) {
    const auto samples = static_cast<std::size_t>(values_["samples"].as<std::int64_t>());
    const generate::BeamOptions options{.beams = values_["beams"].as<int>(),
                                        .length_penalty = values_["length-penalty"].as<double>(),
                                        .tokens = request_.tokens,
                                        .vocab = request_.vocab,
                                        .eod = request_.eod};
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      auto found = beam_search(*decoder_, prompts[i].ids, options);
      for (std::size_t k = 0; k < std::min(samples, found.size()); ++k)
        add(printer, i * samples + k, prompts[i],
            {.ids = std::move(found[k].ids), .stop = found[k].stop}, found[k].score);
    }
  }

  void without_cache(const std::vector<Prompt>& prompts, Printer& printer) {
    const auto samples = static_cast<std::size_t>(values_["samples"].as<std::int64_t>());
    generate::Decoder decoder(*model_.backend, *model_.parameters, model_.spec,
                              generate::Cache::none);
    generate::Generator generator(decoder, request_);
    for (std::size_t i = 0; i < prompts.size(); ++i)
      for (std::size_t k = 0; k < samples; ++k)
        add(printer, i * samples + k, prompts[i], generator.generate(prompts[i].ids, k));
  }

  void add(Printer& printer, std::size_t number, const Prompt& prompt,
           generate::Continuation continuation, std::optional<double> score = std::nullopt) {
    generate::TextStream stream(*model_.tokenizer, prompt.ids, stops_);
    for (std::size_t i = 0; i < continuation.ids.size(); ++i) {
      stream.push(continuation.ids[i]);
      if (!stream.stopped()) continue;
      continuation.ids.resize(i + 1);
      if (!continuation.tokens.empty()) continuation.tokens.resize(i + 1);
      continuation.stop = generate::Stop::text;
    }
    printer.add(number, {stream.text(), std::move(continuation), score});
  }

  const po::variables_map& values_;
  InferenceModel& model_;
  generate::BatchDecoder* decoder_;  ///< null with --recompute
  generate::Request request_;
  std::vector<std::string> stops_;
};

ExitCode generate_on(const po::variables_map& values,
                     std::unique_ptr<comm::MpiCommunicator> world) {
  const bool several = world != nullptr;
  const bool recompute = values["recompute"].as<bool>();
  if (recompute && several) throw UsageError("--recompute runs as one process, without mpirun");
  InferenceModel model = load_model(values, kProgram, std::move(world));
  std::optional<generate::BatchDecoder> decoder;
  if (!recompute) {
    const std::int64_t sequences = values.count("beams") ? 2 * values["beams"].as<int>()
                                   : values["interactive"].as<bool>()
                                       ? 1
                                       : values["batch"].as<std::int64_t>();
    decoder.emplace(*model.backend, *model.parameters, model.spec,
                    generate::BatchLimits{.sequences = sequences}, model.ranks());
  }
  if (!model.leads()) {
    decoder->follow();
    return ExitCode::success;
  }
  Run run(values, model, decoder ? &*decoder : nullptr);
  if (values["interactive"].as<bool>() ||
      (!several && !recompute && !values.count("beams") && !values.count("prompt") &&
       !values.count("input") && !values["unconditional"].as<bool>() &&
       !values["json"].as<bool>() && ::isatty(STDIN_FILENO)))
    run.interactive();
  else
    run.prompts(read_prompts(values));
  if (decoder) decoder->stop();
  return ExitCode::success;
}

ExitCode run(int argc, char** argv) {
  po::options_description options;
  options.add(model_options())
      .add(work_options())
      .add(sampling_options())
      .add(tokenizer_override_options())
      .add(general_options());
  if (answers_help_or_version(argc, argv, kProgram, kUsage, options)) return ExitCode::success;
  const po::variables_map values = parse_options(argc, argv, options);
  sampling_of(values);
  check_options(values);
  if (!is_one_of_several_ranks()) return generate_on(values, nullptr);
  if (values["interactive"].as<bool>())
    throw UsageError("--interactive runs as one process: start it without mpirun or srun");
  return run_on_ranks(kProgram, [&](auto world) { return generate_on(values, std::move(world)); });
}

}  // namespace
}  // namespace trireme

int main(int argc, char** argv) {
  if (trireme::is_one_of_several_ranks())
    return trireme::run_mpi_app(trireme::kProgram, argc, argv, trireme::run);
  return trireme::run_app(trireme::kProgram, argc, argv, trireme::run);
}
