#include "serve/server.hpp"

#include <httplib.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <charconv>
#include <chrono>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "core/clock.hpp"
#include "core/error.hpp"

namespace trireme::serve {
namespace {

using httplib::DataSink;

/// How often a thread that waits for the model looks whether its client is still there.
constexpr std::chrono::milliseconds kLook{50};

/// Time for clients to read their last answers before their connections are cut.
constexpr std::chrono::seconds kLastAnswers{2};

/// Whether two texts are equal, in a time that tells nothing of where they differ.
bool equal_secrets(std::string_view a, std::string_view b) {
  unsigned difference = a.size() != b.size();
  for (std::size_t i = 0; i < a.size(); ++i)
    difference |= static_cast<unsigned char>(a[i]) ^
                  static_cast<unsigned char>(b.empty() ? 0 : b[i % b.size()]);
  return difference == 0;
}

}  // namespace

struct Server::Implementation {
  Implementation(const ServerOptions& options_in, CompletionQueue& queue_in,
                 const tokenizer::Tokenizer& tokenizer_in)
      : options(options_in), queue(queue_in), tokenizer(tokenizer_in) {}

  ServerOptions options;
  CompletionQueue& queue;
  const tokenizer::Tokenizer& tokenizer;
  httplib::Server http;
  socket_t listening = INVALID_SOCKET;
  std::future<void> listener;
  int port = 0;
  std::atomic<std::int64_t> next_id = 0;

  void configure();
  void add_routes();
  bool allowed(const httplib::Request& request) const;
  void answer_openai(const httplib::Request& request, httplib::Response& response);
  void answer_megatron(const httplib::Request& request, httplib::Response& response);

  /// Runs `answer`; what a client did wrong becomes its status and message.
  template <typename Answer>
  void guarded(httplib::Response& response, const Answer& answer);
  /// Takes the progress of a request until it is finished, its time is over, or its client is gone
  /// or the model has failed: then false. `visit` gets each progress and returns false when the
  /// client is gone.
  template <typename Visit>
  bool follow(const std::shared_ptr<Completion>& completion, const DataSink& sink,
              const Stopwatch& watch, const Visit& visit);
  /// Answers with what `render` makes of the finished choices, unless the client goes away.
  void send_when_finished(const std::shared_ptr<Completion>& completion,
                          httplib::Response& response,
                          std::function<std::string(const std::vector<Choice>&)> render);
  void send_events(const std::shared_ptr<Completion>& completion, httplib::Response& response,
                   const AnswerHead& head);
};

void Server::Implementation::configure() {
  http.new_task_queue = [threads = options.connections] {
    return new httplib::ThreadPool(static_cast<std::size_t>(threads));
  };
  http.set_payload_max_length(options.body_bytes);
  // The default, SO_REUSEPORT, lets a second server take a share of the connections unnoticed.
  http.set_socket_options([this](socket_t socket) {
    listening = socket;
    const int yes = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  });
  http.set_read_timeout(10);
  http.set_write_timeout(10);  // a client that reads slower loses its answer
  http.set_keep_alive_timeout(1);
  http.set_tcp_nodelay(true);
  http.set_pre_routing_handler([this](const auto& request, auto& response) {
    ++queue.counters.requests;
    // A server may ignore Range (RFC 9110, 14.2); httplib would cut answers with it.
    const_cast<httplib::Request&>(request).ranges.clear();
    const auto refuse = [&](int status, const char* message) {
      response.status = status;
      response.set_header("Connection", "close");  // the body is not read
      response.set_content(error_body(status, message), "application/json");
      return httplib::Server::HandlerResponse::Handled;
    };
    if (!allowed(request)) {
      response.set_header("WWW-Authenticate", "Bearer");
      return refuse(401, "an access token is needed: Authorization: Bearer ...");
    }
    // httplib would read to the end of the connection.
    const bool has_body = request.method == "POST" || request.method == "PUT";
    if (has_body && !request.has_header("Content-Length") &&
        !request.has_header("Transfer-Encoding"))
      return refuse(411, "the request has no Content-Length");
    return httplib::Server::HandlerResponse::Unhandled;
  });
  http.set_error_handler([this](const auto& request, auto& response) {
    ++queue.counters.refused;
    if (!response.body.empty()) return;
    // What `curl -d` sends without a type of its own; httplib takes 8 KiB of it.
    const bool form =
        request.get_header_value("Content-Type").find("x-www-form-urlencoded") != std::string::npos;
    const char* text = response.status == 404 ? "there is nothing at this address"
                       : response.status == 413 && form
                           ? "a form may have 8192 bytes: send it as Content-Type: application/json"
                       : response.status == 413 ? "the request is too large"
                                                : "the request cannot be served";
    response.set_content(error_body(response.status, text), "application/json");
  });
  http.set_exception_handler([this](const auto&, auto& response, std::exception_ptr) {
    ++queue.counters.failed;
    response.status = 500;
    response.set_content(error_body(500, "internal error"), "application/json");
  });
}

bool Server::Implementation::allowed(const httplib::Request& request) const {
  if (options.access_token.empty() || request.path == "/health" || request.path == "/") return true;
  constexpr std::string_view kBearer = "Bearer ";
  const std::string header = request.get_header_value("Authorization");
  return header.starts_with(kBearer) &&
         equal_secrets(std::string_view(header).substr(kBearer.size()), options.access_token);
}

void Server::Implementation::add_routes() {
  http.Get("/", [](const auto&, auto& response) {
    response.set_header(
        "Content-Security-Policy",
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
        "connect-src 'self'; frame-ancestors 'none'");
    const std::string_view page = web_page();
    response.set_content(page.data(), page.size(), "text/html; charset=utf-8");
  });
  http.Get("/health", [this](const auto&, auto& response) {
    response.status = queue.closing() ? 503 : 200;
    response.set_content(health_body(options.model, queue.closing()), "application/json");
  });
  http.Get("/metrics", [this](const auto&, auto& response) {
    response.set_content(queue.counters.text(), "text/plain; version=0.0.4");
  });
  http.Get("/v1/models", [this, now = unix_time()](const auto&, auto& response) {
    response.set_content(models_body(options.model, now), "application/json");
  });
  const auto openai = [this](const auto& request, auto& response) {
    guarded(response, [&] { answer_openai(request, response); });
  };
  const auto megatron = [this](const auto& request, auto& response) {
    guarded(response, [&] { answer_megatron(request, response); });
  };
  http.Post("/v1/completions", openai);
  http.Put("/api", megatron);
  http.Post("/api", megatron);
}

template <typename Answer>
void Server::Implementation::guarded(httplib::Response& response, const Answer& answer) {
  try {
    answer();
  } catch (const BadRequest& problem) {
    response.status = problem.status;
    if (problem.status == 429 || problem.status == 503) response.set_header("Retry-After", "1");
    response.set_content(error_body(problem.status, problem.what()), "application/json");
  }
}

template <typename Visit>
bool Server::Implementation::follow(const std::shared_ptr<Completion>& completion,
                                    const DataSink& sink, const Stopwatch& watch,
                                    const Visit& visit) {
  bool there = true;
  while (there && !completion->finished() && watch.seconds() < options.request_seconds) {
    auto progress = completion->next(kLook);
    there = progress ? visit(std::move(*progress)) : sink.is_writable();
  }
  if (!completion->finished()) completion->abandon();
  // The status has been sent: what is cut off is not taken for an answer.
  return there && !completion->failed();
}

void Server::Implementation::send_when_finished(
    const std::shared_ptr<Completion>& completion, httplib::Response& response,
    std::function<std::string(const std::vector<Choice>&)> render) {
  // In chunks, so that a client that goes away is noticed while the model runs.
  response.set_chunked_content_provider(
      "application/json",
      [this, completion, render = std::move(render), watch = Stopwatch()](std::size_t,
                                                                          DataSink& sink) {
        std::vector<Choice> choices(completion->request.work.size());
        const bool there = follow(completion, sink, watch, [&](Progress progress) {
          Choice& choice = choices[progress.index];
          choice.text += progress.piece;
          choice.generated = progress.generated;
          std::ranges::move(progress.tokens, std::back_inserter(choice.tokens));
          if (progress.ended) choice.reason = finish_reason(progress.stop);
          return true;
        });
        if (!there) return false;
        const std::string body = render(choices) + "\n";
        if (!sink.write(body.data(), body.size())) return false;
        sink.done();
        return true;
      },
      [completion](bool) { completion->abandon(); });
}

void Server::Implementation::send_events(const std::shared_ptr<Completion>& completion,
                                         httplib::Response& response, const AnswerHead& head) {
  response.set_header("Cache-Control", "no-cache");
  response.set_chunked_content_provider(
      "text/event-stream",
      [this, completion, head, watch = Stopwatch()](std::size_t, DataSink& sink) {
        const CompletionRequest& request = completion->request;
        const auto send = [&](const std::string& data) {
          const std::string event = "data: " + data + "\n\n";
          return sink.write(event.data(), event.size());
        };
        const auto send_choice = [&](const Choice& choice, std::size_t index, bool finished) {
          return send(openai_event(head, request, choice, index, finished));
        };
        std::vector<bool> ended(request.work.size(), false);
        if (request.echo)
          for (std::size_t i = 0; i < request.work.size(); ++i)
            if (!send_choice({.text = request.work[i].prompt, .tokens = {}}, i, false))
              return false;
        const bool there = follow(completion, sink, watch, [&](Progress progress) {
          ended[progress.index] = progress.ended;
          Choice choice{.text = std::move(progress.piece), .tokens = std::move(progress.tokens)};
          if (progress.ended) choice.reason = finish_reason(progress.stop);
          return send_choice(choice, progress.index, progress.ended);
        });
        if (!there) return false;
        for (std::size_t i = 0; i < ended.size(); ++i)
          if (!ended[i] && !send_choice({}, i, true)) return false;
        if (!send("[DONE]")) return false;
        sink.done();
        return true;
      },
      [completion](bool) { completion->abandon(); });
}

void Server::Implementation::answer_openai(const httplib::Request& request,
                                           httplib::Response& response) {
  auto completion = queue.submit(parse_openai(request.body, tokenizer, options.limits));
  const AnswerHead head{.id = ++next_id, .created = unix_time(), .model = options.model};
  if (completion->request.stream) return send_events(completion, response, head);
  send_when_finished(completion, response, [completion, head](const auto& choices) {
    return openai_answer(head, completion->request, choices);
  });
}

void Server::Implementation::answer_megatron(const httplib::Request& request,
                                             httplib::Response& response) {
  auto completion = queue.submit(parse_megatron(request.body, tokenizer, options.limits));
  send_when_finished(completion, response, [this, completion](const auto& choices) {
    return megatron_answer(tokenizer, completion->request, choices);
  });
}

std::string ServerOptions::address(int of_port) const {
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, of_port)
                                             : fmt::format("[{}]:{}", host, of_port);
}

bool ServerOptions::is_loopback() const {
  if (host == "localhost") return true;
  const addrinfo numeric{.ai_flags = AI_NUMERICHOST};
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), nullptr, &numeric, &found) != 0) return false;
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owned(found, ::freeaddrinfo);
  if (found->ai_family == AF_INET6)
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(found->ai_addr)->sin6_addr);
  return ntohl(reinterpret_cast<const sockaddr_in*>(found->ai_addr)->sin_addr.s_addr) >> 24 == 127;
}

Server::Server(const ServerOptions& options, CompletionQueue& queue,
               const tokenizer::Tokenizer& tokenizer)
    : implementation_(std::make_unique<Implementation>(options, queue, tokenizer)) {
  Implementation& self = *implementation_;
  self.configure();
  self.add_routes();
  self.port = options.port == 0 ? self.http.bind_to_any_port(options.host)
              : self.http.bind_to_port(options.host, options.port) ? options.port
                                                                   : -1;
  if (self.port < 0)
    throw IoError("cannot listen on {}: the address is in use, or not of this machine",
                  options.address(options.port));
  // httplib's backlog is 5: when more clients connect at a time, some are reset.
  ::listen(self.listening, SOMAXCONN);
  self.listener = std::async(std::launch::async, [&self] { self.http.listen_after_bind(); });
  // stop() does nothing before it runs.
  while (!self.http.is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

Server::~Server() {
  implementation_->http.stop();
  // httplib's time-outs restart with each byte: a slow client would hold its thread for hours.
  while (implementation_->listener.wait_for(kLastAnswers) != std::future_status::ready)
    cut_connections(implementation_->port);
}

int Server::port() const { return implementation_->port; }

// ---- cut_connections()

namespace {

/// The local port of a connected TCP socket; nothing for other descriptors.
std::optional<int> connected_port(int descriptor) {
  ::sockaddr_storage address{};
  auto* any = reinterpret_cast<::sockaddr*>(&address);
  ::socklen_t size = sizeof address;
  if (::getpeername(descriptor, any, &size) != 0) return std::nullopt;
  size = sizeof address;
  if (::getsockname(descriptor, any, &size) != 0) return std::nullopt;
  if (address.ss_family == AF_INET)
    return ntohs(reinterpret_cast<const ::sockaddr_in*>(&address)->sin_port);
  if (address.ss_family == AF_INET6)
    return ntohs(reinterpret_cast<const ::sockaddr_in6*>(&address)->sin6_port);
  return std::nullopt;
}

}  // namespace

// httplib does not say which connections it has: the process's descriptors do.
void cut_connections(int port) {
  std::error_code error;
  const std::filesystem::directory_iterator end;
  for (std::filesystem::directory_iterator entry("/proc/self/fd", error); !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    int descriptor = -1;
    std::from_chars(name.data(), name.data() + name.size(), descriptor);
    if (connected_port(descriptor) == port) ::shutdown(descriptor, SHUT_RDWR);
  }
}

}  // namespace trireme::serve
