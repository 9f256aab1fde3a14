// trireme-serve: an HTTP server that continues text with the model of a checkpoint.
#include <algorithm>
#include <atomic>
#include <csignal>

#include "core/files.hpp"
#include "model_options.hpp"
#include "serve/server.hpp"

namespace trireme {
namespace {

constexpr const char* kProgram = "trireme-serve";
constexpr const char* kUsage =
    "Usage: trireme-serve --checkpoint PATH [--bind 127.0.0.1:8080] [options]\n"
    "Serves the model of a checkpoint over HTTP, on one process or under mpirun on tensor and\n"
    "pipeline ranks: POST /v1/completions (OpenAI's form, with streaming), PUT /api "
    "(Megatron-LM's),\n"
    "/health, /metrics (Prometheus), and a page to try it at /. SIGTERM ends it cleanly.\n\n";

po::options_description server_options() {
  po::options_description options("Server");
  options.add_options()  //
      ("bind", po::value<std::string>()->default_value("127.0.0.1:8080")->value_name("HOST:PORT"),
       "where to listen (elsewhere host, port); port 0 takes a free one")  //
      ("token-file", po::value<std::string>()->value_name("FILE"),
       "a file with the access token that clients send as 'Authorization: Bearer TOKEN'; needed "
       "for other addresses than loopback ones")  //
      ("batch", po::value<std::int64_t>()->default_value(16)->value_name("N"),
       "continuations at a time")  //
      ("cache", po::value<std::int64_t>()->value_name("N"),
       "positions that the KV cache holds, over all continuations: those that do not fit wait; "
       "default: the model's whole context for each, on a GPU what its memory holds")  //
      ("queue", po::value<std::int64_t>()->default_value(64)->value_name("N"),
       "continuations that may wait; more are refused with 429, and requests for more than N, or "
       "than 16, with 400")  //
      ("max-prompt", po::value<std::int64_t>()->value_name("N"),
       "tokens of a prompt; default: the model's context less one")  //
      ("max-tokens", po::value<std::int64_t>()->default_value(1024)->value_name("N"),
       "tokens of a continuation")  //
      ("max-body", po::value<std::int64_t>()->default_value(1 << 20)->value_name("BYTES"),
       "bytes of a request; longer ones are refused with 413")  //
      ("time-limit", po::value<std::string>()->default_value("60")->value_name("SECONDS"),
       "of a request, above 0, also as 5min; then it gets what there is")  //
      ("drain", po::value<std::string>()->default_value("10")->value_name("SECONDS"),
       "that requests under way have after SIGTERM");
  return options;
}

std::atomic<bool> stopping = false;

std::int64_t positive(const po::variables_map& values, const char* option, std::int64_t most) {
  const auto value = values[option].as<std::int64_t>();
  if (value < 1 || value > most) throw UsageError("--{} {}: expected 1 to {}", option, value, most);
  return value;
}

/// A number of seconds, or a time with its unit.
double seconds_of(const po::variables_map& values, const char* option, double minimum = 0.0) {
  const auto text = values[option].as<std::string>();
  double value = 0;
  try {
    value = deck::parse_real(text);
  } catch (const deck::BadValue&) {
    value = deck::read_time_option(fmt::format("--{}", option), text);
  }
  if (!(value >= minimum && value <= 1e6))
    throw UsageError("--{} {}: expected {} to 1e6 seconds", option, text, minimum);
  return value;
}

/// The token of --token-file, without white space at its ends. Throws UsageError and IoError.
std::string read_token(const po::variables_map& values) {
  if (!values.count("token-file")) return "";
  const auto path = values["token-file"].as<std::string>();
  const std::string text = read_regular_file(path, 1 << 16);
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) throw UsageError("--token-file {}: the file is empty", path);
  return text.substr(first, text.find_last_not_of(" \t\r\n") + 1 - first);
}

/// Host and port of --bind. Throws UsageError; other addresses than loopback ones need a token.
void read_address(const po::variables_map& values, serve::ServerOptions& options) {
  const auto text = values["bind"].as<std::string>();
  const std::size_t colon = text.rfind(':');
  const std::string port = colon == std::string::npos ? "" : text.substr(colon + 1);
  const bool digits = !port.empty() && port.size() <= 5 &&
                      port.find_first_not_of("0123456789") == std::string::npos;
  if (!digits || colon == 0 || std::stoi(port) > 65535)
    throw UsageError("--bind {}: expected HOST:PORT, such as 127.0.0.1:8080", text);
  options.host = text.substr(0, colon);
  if (options.host.starts_with('[') && options.host.ends_with(']'))
    options.host = options.host.substr(1, options.host.size() - 2);
  options.port = std::stoi(port);
  if (!options.is_loopback() && options.access_token.empty())
    throw UsageError("--bind {} is open to other machines: give --token-file", text);
}

serve::ServerOptions read_options(const po::variables_map& values) {
  serve::ServerOptions options;
  options.access_token = read_token(values);
  read_address(values, options);
  options.body_bytes = static_cast<std::size_t>(positive(values, "max-body", 1 << 30));
  options.request_seconds = seconds_of(values, "time-limit", 0.001);
  options.limits.new_tokens = positive(values, "max-tokens", 1 << 24);
  positive(values, "batch", 4096);
  // A larger request would never find room.
  options.limits.continuations = std::min(
      options.limits.continuations, static_cast<std::size_t>(positive(values, "queue", 1 << 20)));
  if (values.count("cache")) positive(values, "cache", 1 << 30);
  if (values.count("max-prompt"))
    options.limits.prompt_tokens = positive(values, "max-prompt", 1 << 24);
  seconds_of(values, "drain");
  return options;
}

ExitCode serve_on(const po::variables_map& values, serve::ServerOptions options,
                  std::unique_ptr<comm::MpiCommunicator> world) {
  InferenceModel model = load_model(values, kProgram, std::move(world));
  generate::BatchDecoder decoder(*model.backend, *model.parameters, model.spec,
                                 limits_of(values, model, values["batch"].as<std::int64_t>()),
                                 model.ranks());
  if (!model.leads()) {
    std::signal(SIGTERM, SIG_IGN);  // the first rank ends them all
    std::signal(SIGINT, SIG_IGN);
    decoder.follow();
    return ExitCode::success;
  }
  for (const int signal : {SIGTERM, SIGINT}) std::signal(signal, [](int) { stopping = true; });
  options.model = fmt::format("{}-{}", model.deck.run.name, model.iteration);
  if (decoder.capacity() < model.spec.embedding.positions)
    std::fputs(fmt::format("{}: {} tokens of a text\n", kProgram, decoder.capacity_text()).c_str(),
               stderr);
  const std::int64_t longest = decoder.capacity() - 1;
  if (options.limits.prompt_tokens == 0 || options.limits.prompt_tokens > longest)
    options.limits.prompt_tokens = longest;
  serve::CompletionQueue queue(decoder, *model.tokenizer,
                               static_cast<std::size_t>(values["queue"].as<std::int64_t>()));
  {
    const serve::Server server(options, queue, *model.tokenizer);
    std::fputs(
        fmt::format("{0}: KV cache: {1}\n{0}: serving {2} at http://{3}\n", kProgram,
                    decoder.cache_plan().text(), options.model, options.address(server.port()))
            .c_str(),
        stderr);
    queue.run(stopping, std::chrono::milliseconds(
                            static_cast<std::int64_t>(1e3 * seconds_of(values, "drain"))));
  }
  decoder.stop();
  std::fputs(fmt::format("{}: stopped; {} requests, {} tokens\n", kProgram,
                         queue.counters.requests.load(), queue.counters.generated_tokens.load())
                 .c_str(),
             stderr);
  return ExitCode::success;
}

ExitCode run(int argc, char** argv) {
  po::options_description options;
  options.add(model_options())
      .add(server_options())
      .add(tokenizer_override_options())
      .add(general_options());
  if (answers_help_or_version(argc, argv, kProgram, kUsage, options)) return ExitCode::success;
  const po::variables_map values = parse_options(argc, argv, options);
  const serve::ServerOptions server = read_options(values);
  if (!is_one_of_several_ranks()) return serve_on(values, server, nullptr);
  return run_on_ranks(kProgram,
                      [&](auto world) { return serve_on(values, server, std::move(world)); });
}

}  // namespace
}  // namespace trireme

int main(int argc, char** argv) {
  if (trireme::is_one_of_several_ranks())
    return trireme::run_mpi_app(trireme::kProgram, argc, argv, trireme::run);
  return trireme::run_app(trireme::kProgram, argc, argv, trireme::run);
}
