#include "serve/server.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

#include "core/error.hpp"
#include "core/text.hpp"
#include "tokenizer/preprocess/preprocess.hpp"
#include "tokenizer/tokenizer.hpp"

namespace trireme::serve {
namespace {

using Json = nlohmann::json;

Json parse_object(std::string_view body) {
  if (tokenizer::json_depth(body) > tokenizer::kMaxJsonDepth)
    throw BadRequest(400,
                     fmt::format("the body is nested deeper than {}", tokenizer::kMaxJsonDepth));
  Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) throw BadRequest(400, "the body is not JSON");
  if (!json.is_object()) throw BadRequest(400, "the body is not a JSON object");
  return json;
}

/// Throws for a key that is none of `known`: a misspelt one would change nothing.
void require_known(const Json& json, const std::vector<std::string_view>& known) {
  for (const auto& [key, value] : json.items()) {
    if (std::ranges::find(known, key) != known.end()) continue;
    const std::string shown = tokenizer::replace_invalid_utf8(key.substr(0, 64));
    throw BadRequest(400, fmt::format("there is no key '{}'{}", shown, did_you_mean(shown, known)));
  }
}

/// The member `key`, null where it is absent.
const Json& member(const Json& json, const char* key) {
  static const Json null;
  const auto found = json.find(key);
  return found == json.end() ? null : *found;
}

double number(const Json& json, const char* key, double fallback, double low, double high) {
  const Json& value = member(json, key);
  if (value.is_null()) return fallback;
  if (!value.is_number()) throw BadRequest(400, fmt::format("{}: expected a number", key));
  const double found = value.get<double>();
  if (!(found >= low && found <= high))
    throw BadRequest(400, fmt::format("{} = {}: expected {} to {}", key, found, low, high));
  return found;
}

std::int64_t whole(const Json& json, const char* key, std::int64_t fallback, std::int64_t low,
                   std::int64_t high) {
  const Json& value = member(json, key);
  if (value.is_null()) return fallback;
  const auto bad = [&] {
    return BadRequest(400,
                      fmt::format("{}: expected a whole number from {} to {}", key, low, high));
  };
  if (!value.is_number_integer()) throw bad();
  if (value.is_number_unsigned() &&
      value.get<std::uint64_t>() > static_cast<std::uint64_t>(std::max<std::int64_t>(high, 0)))
    throw bad();
  const auto found = value.get<std::int64_t>();
  if (found < low || found > high) throw bad();
  return found;
}

bool flag(const Json& json, const char* key) {
  const Json& value = member(json, key);
  if (value.is_null()) return false;
  if (!value.is_boolean()) throw BadRequest(400, fmt::format("{}: expected true or false", key));
  return value.get<bool>();
}

/// Throws unless `key` is absent or has a value that changes nothing.
void require_neutral(const Json& json, const char* key, bool neutral) {
  if (!member(json, key).is_null() && !neutral)
    throw BadRequest(400, fmt::format("{} is not supported", key));
}

std::uint64_t seed_of(const Json& json, const char* key) {
  if (!member(json, key).is_null())
    return static_cast<std::uint64_t>(whole(json, key, 0, 0, generate::kMaxSeed));
  return std::random_device()();
}

std::vector<std::string> stops_of(const Json& value) {
  constexpr std::size_t kMaxStops = 16, kMaxBytes = 256;
  std::vector<std::string> stops;
  if (value.is_null()) return stops;
  const Json list = value.is_array() ? value : Json::array({value});
  for (const Json& each : list) {
    if (!each.is_string() || stops.size() == kMaxStops ||
        each.get_ref<const std::string&>().size() > kMaxBytes)
      throw BadRequest(400,
                       fmt::format("stop: expected a text, or a list of at most {}, of at most "
                                   "{} bytes each",
                                   kMaxStops, kMaxBytes));
    stops.push_back(each.get<std::string>());
  }
  return stops;
}

/// A text as ids; those of an empty one start a document.
Work work_of_text(const std::string& text, const tokenizer::Tokenizer& tokenizer) {
  Work work{.prompt = text, .ids = tokenizer.encode(text)};
  if (work.ids.empty()) {
    if (!tokenizer.eod()) throw BadRequest(400, "the prompt is empty");
    work.ids = {*tokenizer.eod()};
  }
  return work;
}

Work work_of_ids(const Json& ids, const tokenizer::Tokenizer& tokenizer) {
  Work work;
  for (const Json& id : ids) {
    if (!id.is_number_integer() ||
        (id.is_number_unsigned() && id.get<std::uint64_t>() > INT32_MAX) ||
        id.get<std::int64_t>() < 0 || id.get<std::int64_t>() >= tokenizer.vocab_size())
      throw BadRequest(400,
                       fmt::format("prompt: expected token ids below {}", tokenizer.vocab_size()));
    work.ids.push_back(id.get<std::int32_t>());
  }
  work.prompt = tokenizer.decode(work.ids);
  return work;
}

/// The prompts of a request: a text, token ids, or a list of either.
std::vector<Work> prompts_of(const Json& value, const tokenizer::Tokenizer& tokenizer,
                             std::size_t most) {
  const auto bad = [] {
    return BadRequest(400, "prompt: expected a text, token ids, or a list of either");
  };
  if (value.is_null()) return {work_of_text("", tokenizer)};
  if (value.is_string()) return {work_of_text(value.get<std::string>(), tokenizer)};
  if (!value.is_array() || value.empty()) throw bad();
  if (value.front().is_number()) return {work_of_ids(value, tokenizer)};
  if (value.size() > most)
    throw BadRequest(400, fmt::format("prompt: expected at most {} prompts", most));
  std::vector<Work> prompts;
  for (const Json& each : value) {
    if (each.is_string())
      prompts.push_back(work_of_text(each.get<std::string>(), tokenizer));
    else if (each.is_array() && !each.empty())
      prompts.push_back(work_of_ids(each, tokenizer));
    else
      throw bad();
  }
  return prompts;
}

/// Fills in the work: each prompt `samples` times.
void add_work(CompletionRequest& request, const std::vector<Work>& prompts, std::int64_t samples,
              const RequestLimits& limits) {
  if (prompts.size() * static_cast<std::size_t>(samples) > limits.continuations)
    throw BadRequest(
        400, fmt::format("expected at most {} continuations in a request", limits.continuations));
  for (const Work& prompt : prompts) {
    if (std::ssize(prompt.ids) > limits.prompt_tokens)
      throw BadRequest(400, fmt::format("the prompt has {} tokens, more than the {} allowed",
                                        prompt.ids.size(), limits.prompt_tokens));
    for (std::int64_t sample = 0; sample < samples; ++sample) {
      request.work.push_back(prompt);
      request.work.back().sample = static_cast<std::uint64_t>(sample);
    }
  }
}

generate::Request base_request(const tokenizer::Tokenizer& tokenizer) {
  return {.vocab = tokenizer.vocab_size(), .eod = tokenizer.eod()};
}

}  // namespace

CompletionRequest parse_openai(std::string_view body, const tokenizer::Tokenizer& tokenizer,
                               const RequestLimits& limits) {
  const Json json = parse_object(body);
  require_known(json, {"best_of",
                       "echo",
                       "frequency_penalty",
                       "logit_bias",
                       "logprobs",
                       "max_tokens",
                       "min_p",
                       "model",
                       "n",
                       "presence_penalty",
                       "prompt",
                       "repetition_penalty",
                       "seed",
                       "stop",
                       "stream",
                       "stream_options",
                       "suffix",
                       "temperature",
                       "top_k",
                       "top_p",
                       "user"});
  require_neutral(json, "stream_options", member(json, "stream_options") == Json::object());
  for (const char* key : {"presence_penalty", "frequency_penalty"})
    require_neutral(json, key, number(json, key, 0, -2, 2) == 0);
  require_neutral(
      json, "best_of",
      member(json, "best_of") == member(json, "n") || member(json, "best_of") == Json(1));
  require_neutral(json, "logit_bias", member(json, "logit_bias") == Json::object());
  require_neutral(json, "suffix", member(json, "suffix") == Json(""));

  CompletionRequest request{.work = {}, .generate = base_request(tokenizer)};
  request.stream = flag(json, "stream");
  request.echo = flag(json, "echo");
  request.stop_strings = stops_of(member(json, "stop"));
  request.generate.tokens = whole(json, "max_tokens", std::min<std::int64_t>(16, limits.new_tokens),
                                  1, limits.new_tokens);
  generate::Sampling& sampling = request.generate.sampling;
  sampling.temperature = number(json, "temperature", 1.0, 0.0, 100.0);
  sampling.greedy = sampling.temperature == 0.0;
  if (sampling.greedy) sampling.temperature = 1.0;
  sampling.top_p = number(json, "top_p", 1.0, 1e-9, 1.0);
  sampling.top_k = whole(json, "top_k", 0, 0, tokenizer.vocab_size());
  sampling.min_p = number(json, "min_p", 0.0, 0.0, 1.0);
  sampling.repetition_penalty = number(json, "repetition_penalty", 1.0, 0.01, 100.0);
  sampling.seed = seed_of(json, "seed");
  if (!member(json, "logprobs").is_null()) {
    request.log_probabilities = true;
    request.generate.alternatives = static_cast<int>(whole(json, "logprobs", 0, 0, 20));
    if (request.echo) throw BadRequest(400, "logprobs with echo is not supported");
  }
  const std::int64_t samples =
      whole(json, "n", 1, 1, static_cast<std::int64_t>(limits.continuations));
  add_work(request, prompts_of(member(json, "prompt"), tokenizer, limits.continuations), samples,
           limits);
  return request;
}

CompletionRequest parse_megatron(std::string_view body, const tokenizer::Tokenizer& tokenizer,
                                 const RequestLimits& limits) {
  const Json json = parse_object(body);
  const Json& texts = member(json, "prompts");
  if (texts.is_null()) throw BadRequest(400, "prompts argument required");
  if (json.contains("max_len"))
    throw BadRequest(400, "max_len is no longer used.  Replace with tokens_to_generate");
  if (json.contains("sentences"))
    throw BadRequest(400, "sentences is no longer used.  Replace with prompts");
  if (!texts.is_array()) throw BadRequest(400, "prompts is not a list of strings");
  if (texts.empty()) throw BadRequest(400, "prompts is empty");
  for (const Json& text : texts)
    if (!text.is_string()) throw BadRequest(400, "prompts is not a list of strings");
  require_known(json, {"add_BOS", "beam_width", "length_penalty", "logprobs", "no_log",
                       "prevent_newline_after_colon", "prompts", "random_seed",
                       "stop_on_double_eol", "stop_on_eol", "stop_token", "temperature",
                       "tokens_to_generate", "top_k", "top_p", "top_p_bound", "top_p_decay"});
  require_neutral(json, "beam_width", false);
  for (const char* key : {"stop_on_double_eol", "stop_on_eol", "prevent_newline_after_colon"})
    require_neutral(json, key, !flag(json, key));
  require_neutral(json, "top_p_decay", number(json, "top_p_decay", 0, 0, 1) == 0);
  require_neutral(json, "top_p_bound", number(json, "top_p_bound", 0, 0, 1) == 0);

  CompletionRequest request{.work = {}, .generate = base_request(tokenizer)};
  request.echo = true;
  request.log_probabilities = flag(json, "logprobs");
  request.segments = true;
  if (request.log_probabilities) request.generate.alternatives = 0;
  request.generate.tokens =
      whole(json, "tokens_to_generate", std::min<std::int64_t>(64, limits.new_tokens), 1,
            limits.new_tokens);
  generate::Sampling& sampling = request.generate.sampling;
  sampling.temperature = number(json, "temperature", 1.0, 0.001, 100.0);
  sampling.top_k = whole(json, "top_k", 0, 0, 1000);
  const double top_p = number(json, "top_p", 0.0, 0.0, 1.0);
  if (top_p > 0.0 && sampling.top_k > 0)
    throw BadRequest(400, "cannot set both top-k and top-p samplings.");
  sampling.top_p = top_p > 0.0 ? top_p : 1.0;
  sampling.greedy = sampling.top_k == 1;
  sampling.seed = seed_of(json, "random_seed");
  const bool starts_document = flag(json, "add_BOS");
  std::vector<Work> prompts;
  if (texts.size() > limits.continuations)
    throw BadRequest(400, fmt::format("Maximum number of prompts is {}", limits.continuations));
  for (const Json& text : texts) {
    prompts.push_back(work_of_text(text.get<std::string>(), tokenizer));
    if (starts_document && tokenizer.eod() && !prompts.back().prompt.empty())
      prompts.back().ids.insert(prompts.back().ids.begin(), *tokenizer.eod());
  }
  add_work(request, prompts, 1, limits);
  return request;
}

}  // namespace trireme::serve
