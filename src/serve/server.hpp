// The server: requests of clients, the queue between them and the model, the text of each token,
// HTTP, and the page to try it.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "generate/generator.hpp"
#include "tokenizer/tokenizer.hpp"

namespace trireme::serve {

/// A token as its readers see it.
struct TokenText {
  std::string text;        ///< what it adds; "" where it only begins a character
  std::size_t offset = 0;  ///< of its text in that of the continuation, in code points
  double log_probability = 0;
  /// The most likely tokens in its place with their log-probabilities, the most likely first.
  std::vector<std::pair<std::string, double>> alternatives = {};
};

/// Gives each token of a continuation its part of the text: all parts together are the text of a
/// generate::TextStream. A character of several tokens belongs to the last of them, and what a stop
/// string cuts off to none.
class TokenTexts {
 public:
  /// `tokenizer` must outlive this.
  TokenTexts(const tokenizer::Tokenizer& tokenizer, const std::vector<std::int32_t>& prompt,
             std::vector<std::string> stop_strings = {});

  /// Takes a token. Returns the text that no later token changes, as TextStream::push.
  std::string push(const generate::ChosenToken& token);
  /// What was kept back, at the end.
  std::string finish();
  /// Whether a stop string was met.
  bool stopped() const { return stream_.stopped(); }
  /// The tokens whose text no later token changes; each once.
  std::vector<TokenText> take();

 private:
  struct Waiting {
    TokenText token;
    std::size_t end;  ///< of its text, in bytes
  };

  const tokenizer::Tokenizer& tokenizer_;
  generate::TextStream stream_;
  std::vector<std::int32_t> before_;  ///< the last tokens
  std::vector<Waiting> waiting_;
  std::size_t emitted_ = 0, taken_ = 0;  ///< bytes of the stream's text
  std::size_t offset_ = 0;               ///< taken_ in code points
};

// Requests of clients as jobs: the OpenAI completions form and Megatron-LM's.

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
  bool segments = false;  ///< choices have their tokens, also without log-probabilities
};

/// Parses the body of POST /v1/completions. Beyond OpenAI's keys: top_k, min_p, repetition_penalty;
/// temperature 0 is greedy. What is not supported is refused, not ignored. Throws BadRequest.
CompletionRequest parse_openai(std::string_view body, const tokenizer::Tokenizer& tokenizer,
                               const RequestLimits& limits);

/// Parses the body of PUT /api, as Megatron-LM's text_generation_server.py takes it; top_k 1 is
/// greedy. Beam search is refused. Throws BadRequest.
CompletionRequest parse_megatron(std::string_view body, const tokenizer::Tokenizer& tokenizer,
                                 const RequestLimits& limits);

// Answers to clients, as JSON.

/// One continuation of an answer, or what is new of it.
struct Choice {
  std::string text;
  std::vector<TokenText> tokens = {};
  std::int64_t generated = 0;        ///< tokens, also those of a stop string
  std::string_view reason = "time";  ///< finish_reason(), or "time": its time limit was reached
};

/// What each answer and each event of one request begins with.
struct AnswerHead {
  std::int64_t id = 0;
  double created = 0;  ///< seconds since 1970
  std::string model;
};

/// OpenAI's finish_reason.
std::string_view finish_reason(generate::Stop stop);

/// OpenAI's form of an error with a status of HTTP.
std::string error_body(int status, const std::string& message);

/// The answer to GET /health.
std::string health_body(const std::string& model, bool closing);

/// The answer to GET /v1/models; `created` in seconds since 1970.
std::string models_body(const std::string& model, double created);

/// The answer to POST /v1/completions; `choices` in the order of `request.work`.
std::string openai_answer(const AnswerHead& head, const CompletionRequest& request,
                          const std::vector<Choice>& choices);

/// One event of a streamed answer: what is new of the continuation `index`.
std::string openai_event(const AnswerHead& head, const CompletionRequest& request,
                         const Choice& choice, std::size_t index, bool finished);

/// The answer to PUT /api.
std::string megatron_answer(const tokenizer::Tokenizer& tokenizer, const CompletionRequest& request,
                            const std::vector<Choice>& choices);

// Between the threads that speak with clients and the one that runs the model.

/// What has become of one continuation of a request since the last look.
struct Progress {
  std::size_t index = 0;               ///< of CompletionRequest::work
  std::string piece;                   ///< further text
  std::vector<TokenText> tokens = {};  ///< those whose text is now known
  std::int64_t generated = 0;          ///< tokens so far
  bool ended = false;
  generate::Stop stop = generate::Stop::tokens;
};

/// A request on its way. Its client's thread waits for next(); the model's thread adds.
class Completion {
 public:
  explicit Completion(CompletionRequest request_in) : request(std::move(request_in)) {}

  const CompletionRequest request;

  /// The next progress; nothing after `wait`, or once the model's thread has given up.
  std::optional<Progress> next(std::chrono::milliseconds wait);
  /// Whether no progress comes any more and all has been taken.
  bool finished();
  /// Tells the model's thread to drop what is not done.
  void abandon() { abandoned_ = true; }
  bool abandoned() const { return abandoned_; }
  /// Whether the model failed before all was generated.
  bool failed() const { return failed_; }

 private:
  friend class CompletionQueue;
  void add(Progress progress);
  /// Ends the client's wait: nothing more comes.
  void fail();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Progress> progress_;
  std::size_t ended_ = 0;  ///< continuations
  std::atomic<bool> abandoned_ = false, failed_ = false;
};

/// Counts since the start, for /metrics.
struct Counters {
  std::atomic<std::int64_t> requests = 0, refused = 0, failed = 0;
  std::atomic<std::int64_t> prompt_tokens = 0, generated_tokens = 0;
  std::atomic<std::int64_t> active = 0, waiting = 0;  ///< continuations now
  std::atomic<std::int64_t> passes = 0;

  /// In Prometheus's text format.
  std::string text() const;
};

/// Runs all requests together on the thread that calls run().
class CompletionQueue {
 public:
  /// Both must outlive this; at most `limit` continuations wait for a place in the batch.
  CompletionQueue(generate::BatchDecoder& decoder, const tokenizer::Tokenizer& tokenizer,
                  std::size_t limit)
      : decoder_(decoder), tokenizer_(tokenizer), limit_(limit) {}

  /// Queues a request. Throws BadRequest: 429 when the queue is full, 503 when it is closing. From
  /// any thread.
  std::shared_ptr<Completion> submit(CompletionRequest request);

  /// Runs the model until `stop` is set; then finishes running requests within `drain` and
  /// aborts the rest. Throws as BatchGenerator::step().
  void run(const std::atomic<bool>& stop, std::chrono::milliseconds drain);

  bool closing() const { return closing_; }
  Counters counters;

 private:
  struct Active {
    std::shared_ptr<Completion> completion;
    std::vector<generate::BatchGenerator::Ticket> tickets;
    std::vector<std::unique_ptr<TokenTexts>> streams;
    std::size_t left = 0;  ///< continuations that have not ended
  };
  void serve(const std::atomic<bool>& stop, std::chrono::milliseconds drain);
  /// Takes no more requests, and fails those that it has.
  void fail_all();
  void start(generate::BatchGenerator& generator, std::shared_ptr<Completion> completion);
  void take_submitted(generate::BatchGenerator& generator, std::chrono::milliseconds wait);
  void drop_abandoned(generate::BatchGenerator& generator, bool all);
  void count(const generate::BatchGenerator& generator);

  generate::BatchDecoder& decoder_;
  const tokenizer::Tokenizer& tokenizer_;
  std::size_t limit_;
  std::mutex mutex_;
  std::condition_variable submitted_changed_;
  std::deque<std::shared_ptr<Completion>> submitted_;
  std::atomic<bool> closing_ = false;
  std::vector<std::unique_ptr<Active>> active_;  ///< of the model's thread
};

// The HTTP server: OpenAI completions, Megatron-LM's API, health, metrics and a page to try it.

struct ServerOptions {
  std::string host = "127.0.0.1";
  int port = 8080;           ///< 0: any free one
  std::string model;         ///< its name for clients
  std::string access_token;  ///< "": none is needed
  RequestLimits limits;
  std::size_t body_bytes = std::size_t{1} << 20;
  double request_seconds = 60.0;  ///< then a continuation ends as it is
  int connections = 128;          ///< served at a time; each has a thread

  /// The host and a port of it as URLs have them: IPv6 addresses in brackets.
  std::string address(int of_port) const;
  /// Whether other machines cannot reach `host`: localhost, or an address 127.x.x.x or ::1. Other
  /// names are not, whatever they resolve to.
  bool is_loopback() const;
};

/// Listens from the time it is made; its threads hand requests to `queue`.
///
///   POST /v1/completions  JSON, or with "stream" server-sent events
///   GET  /v1/models       the one model
///   PUT  /api             Megatron-LM's text_generation_server.py (POST too)
///   GET  /health          200, or 503 while shutting down
///   GET  /metrics         Prometheus's text format
///   GET  /                a page to try it
///
/// With an access token, all but /health and / need "Authorization: Bearer TOKEN".
class Server {
 public:
  /// `queue` and `tokenizer` must outlive this. Throws IoError when the address is taken.
  Server(const ServerOptions& options, CompletionQueue& queue,
         const tokenizer::Tokenizer& tokenizer);
  /// Ends all connections within seconds, also those of clients that send or read slowly.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  /// The port that it listens on.
  int port() const;

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

/// Cuts the connections to `port` of this machine that this process has accepted; reading and
/// writing them then fails. Their owners close them.
void cut_connections(int port);

// The page at /: prompt, sampling controls, the answer as it comes, the probabilities of its
// tokens.

/// HTML that loads nothing from elsewhere.
std::string_view web_page();

}  // namespace trireme::serve
