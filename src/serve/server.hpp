// The HTTP server: OpenAI completions, Megatron-LM's API, health, metrics and a page to try it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "serve/completion_queue.hpp"

namespace trireme::serve {

struct ServerOptions {
  std::string host = "127.0.0.1";
  int port = 8080;           ///< 0: any free one
  std::string model;         ///< its name for clients
  std::string access_token;  ///< "": none is needed
  RequestLimits limits;
  std::size_t body_bytes = std::size_t{1} << 20;
  double request_seconds = 60.0;  ///< then a continuation ends as it is
  int connections = 128;          ///< served at a time; each has a thread
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
  /// Ends all connections.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  /// The port that it listens on.
  int port() const;

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace trireme::serve
