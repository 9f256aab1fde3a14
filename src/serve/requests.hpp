// Requests of clients as jobs: the OpenAI completions form and Megatron-LM's.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "generate/generator.hpp"
#include "tokenizer/tokenizer.hpp"

namespace trireme::serve {

/// What a client may ask for.
struct RequestLimits {
  std::int64_t prompt_tokens = 0;  ///< at most so many in a prompt
  std::int64_t new_tokens = 0;     ///< at most so many in a continuation
  std::size_t continuations = 16;  ///< prompts x samples of one request
};

/// A request that cannot be served; the message goes to the client and holds nothing of the server.
class BadRequest : public std::runtime_error {
 public:
  BadRequest(int status_in, const std::string& message)
      : std::runtime_error(message), status(status_in) {}
  int status;  ///< of HTTP
};

/// One continuation that a request asks for.
struct Work {
  std::string prompt;  ///< its text
  std::vector<std::int32_t> ids;
  std::uint64_t sample = 0;
};

/// A request in either form.
struct CompletionRequest {
  std::vector<Work> work;      ///< in the order of the answer
  generate::Request generate;  ///< shared by all
  std::vector<std::string> stop_strings;
  bool stream = false;
  bool echo = false;  ///< the text begins with the prompt
  bool log_probabilities = false;
};

/// Parses the body of POST /v1/completions. Beyond OpenAI's keys: top_k, min_p, repetition_penalty;
/// temperature 0 is greedy. What is not supported is refused, not ignored. Throws BadRequest.
CompletionRequest parse_openai(std::string_view body, const tokenizer::Tokenizer& tokenizer,
                               const RequestLimits& limits);

/// Parses the body of PUT /api, as Megatron-LM's text_generation_server.py takes it; top_k 1 is
/// greedy. Beam search is refused. Throws BadRequest.
CompletionRequest parse_megatron(std::string_view body, const tokenizer::Tokenizer& tokenizer,
                                 const RequestLimits& limits);

}  // namespace trireme::serve
