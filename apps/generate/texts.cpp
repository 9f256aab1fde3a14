#include "generate/texts.hpp"

#include <array>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/files.hpp"
#include "tokenizer/preprocess/preprocess.hpp"
#include "tokenizer/tokenizer.hpp"

namespace trireme {
namespace {

using Json = nlohmann::ordered_json;

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

}  // namespace trireme
