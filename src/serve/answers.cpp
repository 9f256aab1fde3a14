#include <iterator>
#include <nlohmann/json.hpp>

#include "serve/server.hpp"

namespace trireme::serve {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::string dump(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

/// The log-probabilities of tokens in the form of completions.
OrderedJson log_probabilities(const std::vector<TokenText>& tokens) {
  OrderedJson json{{"tokens", OrderedJson::array()}, {"token_logprobs", OrderedJson::array()}};
  OrderedJson top = OrderedJson::array(), offsets = OrderedJson::array();
  bool has_top = false;
  for (const TokenText& token : tokens) {
    json["tokens"].push_back(token.text);
    json["token_logprobs"].push_back(token.log_probability);
    OrderedJson others = OrderedJson::object();
    for (const auto& [text, log_probability] : token.alternatives)
      others.emplace(text, log_probability);  // of equal texts the most likely one
    has_top |= !token.alternatives.empty();
    top.push_back(std::move(others));
    offsets.push_back(token.offset);
  }
  json["top_logprobs"] = has_top ? std::move(top) : OrderedJson(nullptr);
  json["text_offset"] = std::move(offsets);
  return json;
}

/// The text of each of the tokens of `text`, which together are `text`.
OrderedJson segments_of(const tokenizer::Tokenizer& tokenizer, const std::string& text) {
  TokenTexts texts(tokenizer, {});
  for (const std::int32_t id : tokenizer.encode(text)) texts.push({.score = {.id = id}});
  texts.finish();
  OrderedJson segments = OrderedJson::array();
  for (TokenText& token : texts.take()) segments.push_back(std::move(token.text));
  return segments;
}

OrderedJson head_of(const AnswerHead& head) {
  return {{"id", fmt::format("cmpl-{}", head.id)},
          {"object", "text_completion"},
          {"created", static_cast<std::int64_t>(head.created)},
          {"model", head.model}};
}

OrderedJson json_of(const Choice& choice, std::size_t index, bool finished, bool scores) {
  return {{"text", choice.text},
          {"index", index},
          {"logprobs", scores ? log_probabilities(choice.tokens) : OrderedJson(nullptr)},
          {"finish_reason", finished ? OrderedJson(choice.reason) : OrderedJson(nullptr)}};
}

}  // namespace

std::string_view finish_reason(generate::Stop stop) {
  return stop == generate::Stop::eod || stop == generate::Stop::text ? "stop" : "length";
}

std::string error_body(int status, const std::string& message) {
  const char* type = status >= 500 ? "server_error" : "invalid_request_error";
  return dump({{"error", {{"message", message}, {"type", type}, {"code", status}}}});
}

std::string health_body(const std::string& model, bool closing) {
  return dump({{"status", closing ? "closing" : "ok"}, {"model", model}});
}

std::string models_body(const std::string& model, double created) {
  const OrderedJson only = {{"id", model},
                            {"object", "model"},
                            {"created", static_cast<std::int64_t>(created)},
                            {"owned_by", "trireme"}};
  return dump({{"object", "list"}, {"data", OrderedJson::array({only})}});
}

std::string openai_answer(const AnswerHead& head, const CompletionRequest& request,
                          const std::vector<Choice>& choices) {
  OrderedJson json = head_of(head);
  json["choices"] = OrderedJson::array();
  std::int64_t prompt_tokens = 0, tokens = 0;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    Choice choice = choices[i];
    if (request.work[i].sample == 0) prompt_tokens += std::ssize(request.work[i].ids);
    tokens += choice.generated;
    if (request.echo) choice.text = request.work[i].prompt + choice.text;
    json["choices"].push_back(json_of(choice, i, true, request.log_probabilities));
  }
  json["usage"] = {{"prompt_tokens", prompt_tokens},
                   {"completion_tokens", tokens},
                   {"total_tokens", prompt_tokens + tokens}};
  return dump(json);
}

std::string openai_event(const AnswerHead& head, const CompletionRequest& request,
                         const Choice& choice, std::size_t index, bool finished) {
  OrderedJson json = head_of(head);
  json["choices"] =
      OrderedJson::array({json_of(choice, index, finished, request.log_probabilities)});
  return dump(json);
}

std::string megatron_answer(const tokenizer::Tokenizer& tokenizer, const CompletionRequest& request,
                            const std::vector<Choice>& choices) {
  OrderedJson json{{"text", OrderedJson::array()}, {"segments", OrderedJson::array()}};
  OrderedJson scores = OrderedJson::array();
  for (std::size_t i = 0; i < choices.size(); ++i) {
    json["text"].push_back(request.work[i].prompt + choices[i].text);
    OrderedJson segments = segments_of(tokenizer, request.work[i].prompt);
    OrderedJson own = OrderedJson::array();
    for (const TokenText& token : choices[i].tokens) {
      segments.push_back(token.text);
      own.push_back(token.log_probability);
    }
    json["segments"].push_back(std::move(segments));
    scores.push_back(std::move(own));
  }
  if (request.log_probabilities) json["logprobs"] = std::move(scores);
  return dump(json);
}

}  // namespace trireme::serve
