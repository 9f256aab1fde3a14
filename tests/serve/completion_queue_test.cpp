// What becomes of clients and of the server when the model fails; how it writes its address.
#include <gtest/gtest.h>
#include <httplib.h>

#include <future>
#include <limits>
#include <optional>
#include <span>

#include "../generate/tiny_gpt.hpp"
#include "core/error.hpp"
#include "serve/server.hpp"

namespace trireme::serve {
namespace {

TEST(CompletionQueue, EndsAllRequestsWhenTheModelFails) {
  model::Gpt2Config config = generate::TinyGpt::default_config();
  config.vocab = 257;
  generate::TinyGpt gpt(config);
  const Tensor& weights = gpt.parameters.weights();
  std::ranges::fill(std::span(weights.as<float>(), weights.size()),
                    std::numeric_limits<float>::quiet_NaN());
  generate::BatchDecoder decoder(*gpt.backend, gpt.parameters, gpt.spec, {.sequences = 2});
  const auto tokenizer = tokenizer::make_tokenizer({.type = "bytes"});
  CompletionQueue queue(decoder, *tokenizer, 8);
  const ServerOptions options{.port = 0, .limits = {.prompt_tokens = 8, .new_tokens = 8}};
  std::optional<Server> server(std::in_place, options, queue, *tokenizer);
  // More than the batch holds, so that one waits in the queue.
  std::vector<std::future<bool>> clients;
  for (int i = 0; i < 4; ++i)
    clients.push_back(std::async(std::launch::async, [port = server->port()] {
      httplib::Client client("127.0.0.1", port);
      client.set_read_timeout(600);
      return static_cast<bool>(
          client.Post("/v1/completions", R"({"prompt":"a","max_tokens":2})", "application/json"));
    }));
  while (queue.counters.waiting < 4) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const std::atomic<bool> stop = false;
  ExitCode code = ExitCode::success;
  try {
    queue.run(stop, std::chrono::seconds(1));
  } catch (const Error& error) {
    code = error.code();
    EXPECT_STREQ(error.what(), "the model's logits are not finite: its training has diverged");
  }
  EXPECT_EQ(code, ExitCode::diverged);
  for (auto& client : clients) {
    ASSERT_EQ(client.wait_for(std::chrono::seconds(30)), std::future_status::ready);
    EXPECT_FALSE(client.get()) << "it takes what was cut off for an answer";
  }
  try {
    queue.submit(parse_openai(R"({"prompt":"a"})", *tokenizer, options.limits));
    ADD_FAILURE() << "it takes a request that no model answers";
  } catch (const BadRequest& problem) {
    EXPECT_EQ(problem.status, 503);
  }
  server.reset();  // ends
}

TEST(ServerOptions, PutIpv6AddressesInBrackets) {
  EXPECT_EQ(ServerOptions{.host = "::1"}.address(8080), "[::1]:8080");
  EXPECT_EQ(ServerOptions{.host = "localhost"}.address(80), "localhost:80");
}

TEST(ServerOptions, TakeNoNameForALoopbackAddress) {
  for (const char* host :
       {"localhost", "::1", "0:0:0:0:0:0:0:1", "127.0.0.1", "127.1.2.3", "127.1"})
    EXPECT_TRUE(ServerOptions{.host = host}.is_loopback()) << host;
  for (const char* host : {"127.public.test", "127.0.0.1.public.test", "127.", "localhost.test",
                           "0.0.0.0", "128.0.0.1", "::", "::2", ""})
    EXPECT_FALSE(ServerOptions{.host = host}.is_loopback()) << host;
}

}  // namespace
}  // namespace trireme::serve
