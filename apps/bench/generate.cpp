#include <nlohmann/json.hpp>

#include "bench/commands.hpp"
#include "core/clock.hpp"
#include "core/files.hpp"
#include "core/philox.hpp"
#include "deck_options.hpp"
#include "generate/generator.hpp"
#include "model/families/registry.hpp"
#include "plan/setup.hpp"
#include "train/startup/startup.hpp"

namespace trireme::bench {
namespace {

constexpr const char* kGenerateProgram = "trireme-bench generate";
constexpr const char* kGenerateUsage =
    "Usage: trireme-bench generate DECK [KEY=VALUE ...] [options]\n"
    "Times greedy generation by one process with random weights of a deck's model: prompts, then\n"
    "tokens, each pass with what a program does between two. A share of the copy bandwidth counts\n"
    "the weights, which each pass reads once.\n\n";

/// GB/s that a copy within the backend's memory reads and writes.
double copy_rate(device::Backend& backend) {
  const std::size_t bytes = std::size_t{backend.is_host_memory() ? 64u : 1024u} << 20;
  const device::Buffer from = backend.allocate(bytes, "a copy"),
                       to = backend.allocate(bytes, "a copy");
  std::vector<double> seconds;
  for (int i = 0; i < 7; ++i) {
    backend.synchronize();
    const Stopwatch watch;
    backend.copy(to.get(), from.get(), bytes);
    backend.synchronize();
    seconds.push_back(watch.seconds());
  }
  return 2.0 * static_cast<double>(bytes) / median(seconds) / 1e9;
}

struct BatchSpeed {
  std::int64_t batch = 0, tokens = 0;
  double prompt_seconds = 0.0, seconds = 0.0;
  std::int64_t passes = 0;
};

/// Generates `tokens` tokens after `prompt` random ones in `batch` sequences. The time of prompts
/// ends with the pass that gives the last sequence its first token.
BatchSpeed generate(generate::BatchDecoder& decoder, std::int64_t batch, std::int64_t prompt,
                    std::int64_t tokens) {
  generate::BatchGenerator generator(decoder);
  std::int64_t generated = 0, begun = 0;
  std::vector<std::int64_t> of_sequence(batch);
  for (std::int64_t i = 0; i < batch; ++i) {
    std::vector<std::int32_t> ids(prompt);
    for (std::int64_t k = 0; k < prompt; ++k)
      ids[k] =
          static_cast<std::int32_t>(philox_uniform(1, i, k) * static_cast<double>(decoder.vocab()));
    generator.submit({.prompt = ids,
                      .request = {.tokens = tokens, .sampling = {.greedy = true}},
                      .on_token = [&, i](const generate::ChosenToken&) {
                        begun += of_sequence[i]++ == 0;
                        ++generated;
                        return true;
                      }});
  }
  BatchSpeed measured{.batch = batch};
  const Stopwatch prompts;
  while (begun < batch && generator.step()) {
  }
  measured.prompt_seconds = prompts.seconds();
  const std::int64_t before = generated;
  const Stopwatch decoding;
  while (generator.step()) ++measured.passes;
  measured.seconds = decoding.seconds();
  measured.tokens = generated - before;
  return measured;
}

void report(const std::vector<BatchSpeed>& results, const deck::Deck& deck,
            const device::Backend& backend, std::int64_t prompt, double weight_bytes,
            double prompt_flops, double copy, DType dtype, bool json) {
  const double peak = device::peak_flops(backend.gpu_name(), dtype);
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  std::string text =
      fmt::format("{}: {} of weights read by a pass in {}, copy {:.0f} GB/s{}\n", deck.run.name,
                  human_bytes(weight_bytes), name_of(dtype), copy,
                  backend.gpu_name().empty() ? "" : fmt::format(" on {}", backend.gpu_name()));
  for (const BatchSpeed& m : results) {
    const double per_second = static_cast<double>(m.tokens) / m.seconds;
    const double ms = 1e3 * m.seconds / static_cast<double>(m.passes);
    const double share = weight_bytes * static_cast<double>(m.passes) / m.seconds / 1e9 / copy;
    const double rate = prompt_flops * static_cast<double>(m.batch) / m.prompt_seconds;
    rows.push_back({{"sequences", m.batch},
                    {"tokens_per_second", per_second},
                    {"ms_per_pass", ms},
                    {"share_of_copy_bandwidth", share},
                    {"prompt_ms", 1e3 * m.prompt_seconds},
                    {"prompt_tflops", rate / 1e12},
                    {"prompt_mfu", peak > 0.0 ? rate / peak : 0.0}});
    text += fmt::format(
        "{:>4} sequences  {:.0f} tokens/s, {:.3f} ms a pass, {:.1f} % of copy bandwidth; prompts "
        "of {}: {:.1f} ms, {:.1f} TFLOP/s{}\n",
        m.batch, per_second, ms, 100 * share, prompt, 1e3 * m.prompt_seconds, rate / 1e12,
        peak > 0.0 ? fmt::format(", MFU {:.1f} %", 100 * rate / peak) : "");
  }
  if (results.size() > 1) {
    const auto speed = [](const BatchSpeed& m) {
      return static_cast<double>(m.tokens) / m.seconds;
    };
    text += fmt::format("{} sequences generate {:.1f} times as fast as {}\n", results.back().batch,
                        speed(results.back()) / speed(results.front()), results.front().batch);
  }
  print_out(json ? nlohmann::ordered_json{{"deck", deck.run.name},
                                          {"gpu", backend.gpu_name()},
                                          {"copy_gb_per_second", copy},
                                          {"weight_bytes", weight_bytes},
                                          {"rows", rows}}
                           .dump(2) +
                       "\n"
                 : text);
}

ExitCode measure(const DeckArguments& arguments) {
  const auto& values = arguments.values;
  const std::int64_t prompt = values["prompt"].as<std::int64_t>(),
                     tokens = values["tokens"].as<std::int64_t>();
  const auto batches = values["batch"].as<std::vector<std::int64_t>>();
  for (const std::int64_t number : batches)
    if (number < 1 || number > 4096) throw UsageError("--batch {}: expected 1 to 4096", number);
  const deck::Deck deck = deck::load(arguments.path, arguments.overrides,
                                     {.need_data = false, .automatic = train::automatic_device()});
  const bool gpu = deck.run.device == deck::Device::cuda;
  const auto backend = gpu ? device::make_cuda_backend(0, "", device::GemmChoice::heuristic)
                           : device::make_host_backend(device::threads_for_rank(1));
  const std::int64_t vocab = plan::vocabulary(deck).size;
  const model::ModelSpec spec = model::make_spec(deck, {.size = vocab, .eod = std::nullopt});
  if (prompt < 1 || tokens < 2 || prompt + tokens > spec.embedding.positions)
    throw UsageError("--prompt {} and --tokens {}: expected 1 and 2 or more, {} together at most",
                     prompt, tokens, spec.embedding.positions);
  const Precision precision = mixed_precision(plan::precision(deck).activations);
  model::ParameterStore parameters(*backend, model::declare_parameters(spec),
                                   {.partition = {static_cast<int>(spec.layers())}}, {}, precision);
  parameters.initialize(deck.run.seed);
  double weights = 0.0;
  for (const model::Parameter& parameter : model::declare_parameters(spec)) {
    // Tables of which a token reads a row; a tied one is also the output projection.
    const bool looked_up = parameter.stage == model::StagePlacement::first_stage &&
                           parameter.shape.rank() == 2 && !parameter.tied;
    if (!looked_up) weights += static_cast<double>(parameter.shape.size());
  }
  weights *= static_cast<double>(size_of(precision.activations));
  deck::Deck prompts = deck;
  prompts.model.sequence = prompt;
  // Forward alone, and the logits of the last token alone.
  const double logits = 2.0 * static_cast<double>(spec.hidden * vocab);
  const double prompt_flops =
      static_cast<double>(prompt) * (model::flops_per_token(prompts, vocab) / 3.0 - logits) +
      logits;
  const double copy = copy_rate(*backend);
  std::vector<BatchSpeed> results;
  for (const std::int64_t batch : batches) {
    generate::BatchDecoder decoder(
        *backend, parameters, spec,
        {.sequences = batch, .pass_tokens = gpu ? std::int64_t{8192} : std::int64_t{512}});
    generate(decoder, batch, prompt, std::min<std::int64_t>(tokens, 4));
    results.push_back(generate(decoder, batch, prompt, tokens));
  }
  report(results, deck, *backend, prompt, weights, prompt_flops, copy, precision.activations,
         values.count("json") > 0);
  return ExitCode::success;
}

}  // namespace

ExitCode run_generate(int argc, char** argv) {
  po::options_description options = deck_options();
  options.add_options()  //
      ("batch",
       po::value<std::vector<std::int64_t>>()
           ->multitoken()
           ->default_value({1, 64}, "1 64")
           ->value_name("N..."),
       "sequences at a time")  //
      ("prompt", po::value<std::int64_t>()->default_value(512)->value_name("N"),
       "tokens of each prompt")  //
      ("tokens", po::value<std::int64_t>()->default_value(128)->value_name("N"),
       "tokens to generate in each sequence")  //
      ("json", "print JSON instead of lines");
  if (answers_deck_help(argc, argv, kGenerateProgram, kGenerateUsage, options))
    return ExitCode::success;
  const DeckArguments arguments = parse_deck_options(argc, argv, options);
  if (answers_deck_questions(arguments)) return ExitCode::success;
  return measure(arguments);
}

}  // namespace trireme::bench
