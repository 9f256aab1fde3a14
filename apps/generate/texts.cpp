#include "generate/texts.hpp"

#include <nlohmann/json.hpp>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <sstream>

#include "core/files.hpp"
#include "generate/generator.hpp"
#include "tokenizer/preprocess/preprocess.hpp"
#include "tokenizer/tokenizer.hpp"

#ifdef TRIREME_WITH_EDIT
#include <editline/readline.h>
#endif

namespace trireme {
namespace {

std::int64_t at_least_one(const po::variables_map& values, const char* option) {
  const auto value = values[option].as<std::int64_t>();
  if (value < 1 || value > 1'000'000'000)
    throw UsageError("--{} {}: expected 1 to 1000000000", option, value);
  return value;
}

}  // namespace

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
       "sequences at a time; changes their texts by rounding alone")  //
      ("cache", po::value<std::int64_t>()->value_name("N"),
       "positions that the KV cache holds, over all sequences: those that do not fit wait; "
       "default: "
       "the whole context of each, on a GPU what its memory holds")  //
      ("output", po::value<std::string>()->value_name("FILE"),
       "write to this file instead of standard output")  //
      ("json", po::bool_switch(),
       "print a JSON object per continuation: prompt, text (added), tokens (its ids, with those of "
       "a --stop that ended it), finished (whether the document ended), stop (eod, tokens, context "
       "or stop)")  //
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

void check_options(const po::variables_map& values) {
  for (const char* option : {"samples", "batch", "tokens"}) at_least_one(values, option);
  if (values.count("cache")) {
    at_least_one(values, "cache");
    if (values["recompute"].as<bool>()) throw UsageError("--recompute has no cache");
  }
  if (!values["batch"].defaulted())
    for (const char* option : {"beams", "recompute", "interactive"})
      if (values.count(option) && !values[option].defaulted())
        throw UsageError("--batch has no effect with --{}, which takes one prompt after another",
                         option);
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
  if (interactive) {
    for (const char* option : {"output", "logprobs"})
      if (values.count(option)) together(option, "interactive");
    if (values["json"].as<bool>()) together("json", "interactive");
    if (!values["samples"].defaulted()) together("samples", "interactive");
  }
  if (values.count("output")) {
    std::vector<std::string> inputs;
    for (const char* option : {"input", "checkpoint", "vocab", "merges", "model"})
      if (values.count(option)) inputs.push_back(values[option].as<std::string>());
    refuse_device(output_of(values, "output", inputs));
  }
  if (values.count("stop"))
    for (const std::string& text : values["stop"].as<std::vector<std::string>>())
      if (text.empty()) throw UsageError("--stop: must not be empty, since every text has that");
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

namespace {

using Json = nlohmann::ordered_json;

/// The prompts in the lines of `stream` that are not empty; `json`: under "prompt".
std::vector<Prompt> read_lines(std::istream& stream, const std::string& name, bool json) {
  std::vector<Prompt> prompts;
  std::int64_t number = 0;
  for (std::string line; std::getline(stream, line);) {
    // A byte order mark, which preprocessing drops, too.
    if (++number == 1 && line.starts_with("\xEF\xBB\xBF")) line.erase(0, 3);
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

}  // namespace

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

std::vector<std::int32_t> encode(const tokenizer::Tokenizer& tokenizer, const std::string& text) {
  std::vector<std::int32_t> ids = tokenizer.encode(text);
  if (!ids.empty()) return ids;
  if (!tokenizer.eod())
    throw UsageError(
        "the prompt is empty, and the tokenizer has no end-of-document token to begin a document "
        "with");
  return {*tokenizer.eod()};
}

Printer::Printer(const po::variables_map& values, const std::vector<Prompt>& prompts,
                 const tokenizer::Tokenizer& tokenizer)
    : prompts_(prompts),
      tokenizer_(tokenizer),
      samples_(values["samples"].as<std::int64_t>()),
      json_(values["json"].as<bool>()),
      several_(samples_ > 1 || prompts.size() > 1) {
  if (!values.count("output")) return;
  path_ = values["output"].as<std::string>();
  meter_.emplace("generating", "text", static_cast<double>(prompts.size() * samples_),
                 progress_output(values));
}

void Printer::begin() {
  write(tokenizer::replace_invalid_utf8(prompts_.front().text));
  begun_ = true;
}

void Printer::add(std::size_t number, Result result) {
  results_.resize(std::max(results_.size(), number + 1));
  results_[number] = std::move(result);
  for (; next_ < results_.size() && results_[next_]; ++next_) print(next_);
  if (meter_) meter_->update(static_cast<double>(next_));
}

void Printer::pass_over(std::size_t number) {
  Result none;
  none.missing = true;
  add(number, std::move(none));
}

void Printer::finish() const {
  if (!path_.empty()) write_file_atomically(path_, gathered_);
}

void Printer::write(const std::string& text) {
  if (!path_.empty()) {
    gathered_ += text;
    return;
  }
  print_out(text);
  std::fflush(stdout);
}

void Printer::print(std::size_t number) {
  const auto prompt = number / samples_, sample = number % samples_;
  const Result result = std::move(*results_[number]);
  if (result.missing) return;
  if (json_) return write(json_line(prompts_[prompt], result, tokenizer_));
  if (several_) write(fmt::format("--- prompt {}, sample {}\n", prompt + 1, sample + 1));
  write((begun_ ? "" : tokenizer::replace_invalid_utf8(prompts_[prompt].text) + result.text) +
        "\n");
  if (result.continuation.stop == generate::Stop::context)
    std::fputs("(stopped: the model's context, or its KV cache, is full)\n", stderr);
}

// ---- the dialogue

namespace {

std::atomic<bool> interrupted = false;

/// The next line after `prompt`; nothing at the end of the input.
std::optional<std::string> edited_line(const char* prompt) {
#ifdef TRIREME_WITH_EDIT
  errno = 0;
  interrupted = false;
  char* typed = ::readline(prompt);
  if (!typed && (errno == EINTR || interrupted)) {  // Ctrl-C ends libedit's line
    std::puts("");
    return "";
  }
  if (!typed) return std::nullopt;
  std::string line = typed;
  std::free(typed);
  if (!line.empty()) ::add_history(line.c_str());
  return line;
#else
  std::fputs(prompt, stdout);
  std::fflush(stdout);
  std::string line;
  if (!std::getline(std::cin, line)) return std::nullopt;
  return line;
#endif
}

void print(const std::string& text) {
  print_out(text);
  std::fflush(stdout);
}

}  // namespace

void run_dialogue(generate::BatchDecoder& decoder, const tokenizer::Tokenizer& tokenizer,
                  const generate::Request& request, const std::vector<std::string>& stop_strings) {
  std::signal(SIGINT, [](int) { interrupted = true; });
  generate::BatchGenerator generator(decoder);
  std::uint64_t sample = 0;
  while (const auto line = edited_line("prompt> ")) {
    interrupted = false;
    if (line->empty()) continue;
    try {
      const auto ids = encode(tokenizer, *line);
      generate::TextStream stream(tokenizer, ids, stop_strings);
      generator.submit({.prompt = ids,
                        .request = request,
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

}  // namespace trireme
