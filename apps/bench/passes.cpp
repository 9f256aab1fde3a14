#include "bench/passes.hpp"

#include <algorithm>

#include "core/clock.hpp"
#include "core/philox.hpp"
#include "plan/setup.hpp"

namespace trireme::bench {
namespace {

/// Seconds of work before a GPU is timed: under load its clock falls, by a fifth or more where the
/// power is what limits it, and training is load without end.
constexpr double kSecondsUnderLoad = 0.1;

}  // namespace

std::vector<double> time_passes(device::Backend& backend, int repeats,
                                const std::vector<std::function<void()>>& passes) {
  // Chooses GEMM algorithms, then captures CUDA graphs.
  for (int warm_up = 0; warm_up < 3; ++warm_up)
    for (const auto& pass : passes) pass();
  std::vector<std::vector<std::unique_ptr<device::Event>>> events(repeats);
  for (auto& marks : events)
    for (std::size_t i = 0; i <= passes.size(); ++i) marks.push_back(backend.make_event());
  backend.synchronize();
  const Stopwatch load;
  while (!backend.gpu_name().empty() && load.seconds() < kSecondsUnderLoad) {
    for (const auto& pass : passes) pass();
    backend.synchronize();
  }
  for (auto& marks : events) {
    marks[0]->record();
    for (std::size_t i = 0; i < passes.size(); ++i) {
      passes[i]();
      marks[i + 1]->record();
    }
  }
  backend.synchronize();
  std::vector<double> seconds;
  for (std::size_t i = 0; i < passes.size(); ++i) {
    std::vector<double> ms;
    for (const auto& marks : events) ms.push_back(marks[i + 1]->milliseconds_since(*marks[i]));
    seconds.push_back(1e-3 * median(ms));
  }
  return seconds;
}

deck::Deck passes_deck(deck::Deck deck, std::int64_t tensor, std::int64_t micro, bool sequence,
                       int layers) {
  deck.parallel.tensor = tensor;
  deck.parallel.pipeline = deck.parallel.interleave = 1;
  deck.parallel.schedule = deck::PipelineSchedule::one_f_one_b;
  deck.parallel.data = 1;
  deck.parallel.zero = 0;
  deck.parallel.partition.reset();
  deck.parallel.sequence = sequence;
  deck.batch = {.micro = micro, .global = micro, .rampup = {}};
  deck.recompute = {};
  deck.model.layers = layers;
  return deck;
}

Stages::Stages(const deck::Deck& deck, std::int64_t vocab, device::Backend& backend,
               int tensor_rank)
    : layout_{.tensor = static_cast<int>(deck.parallel.tensor),
              .pipeline = 3,
              .partition = {0, static_cast<int>(deck.model.layers), 0}} {
  const auto table = model::declare_parameters(plan::model_spec(deck, {.size = vocab}));
  for (int stage = 0; stage < 3; ++stage) {
    parameters_.push_back(std::make_unique<model::ParameterStore>(
        backend, table, layout_, grid::Coordinates{.tensor = tensor_rank, .pipeline = stage},
        plan::precision(deck), model::StoreOptions{.gradients = true}));
    parameters_.back()->initialize(static_cast<std::uint64_t>(deck.run.seed));
  }
}

std::size_t bytes_of(const model::StageConfig& config, const grid::Layout& layout) {
  std::size_t sum = 0;
  for (const int stage : {0, 1, 1, 2}) {
    const model::StageMemory memory = model::PipelineStage::plan(config, layout, stage, 1);
    sum += memory.fp8_weights + memory.activations + memory.workspace + memory.communication;
  }
  return sum;
}

plan::Profile time_stages(const deck::Deck& deck, std::int64_t vocab, device::Backend& backend,
                          comm::Communicator& tensor, Stages& stages, int repeats) {
  const model::StageConfig config = plan::stage_config(deck, {.size = vocab});
  const std::int64_t samples = deck.batch.micro, tokens = samples * deck.model.sequence;
  std::vector<std::int32_t> ids(tokens), types(tokens, 0), lengths(samples), sentences(samples, 0);
  for (std::int64_t i = 0; i < tokens; ++i)
    ids[i] = static_cast<std::int32_t>(philox_uniform(1234, 0, i) * static_cast<double>(vocab));
  std::ranges::fill(lengths, static_cast<std::int32_t>(deck.model.sequence));
  std::vector<std::int32_t> labels = ids;
  if (const std::int64_t most = config.spec.head.max_labels; most > 0)
    std::fill(labels.begin() + std::min(most * samples, tokens), labels.end(), -1);
  const model::MicroBatch batch{.ids = ids,
                                .labels = labels,
                                .token_types = types,
                                .lengths = lengths,
                                .sentence_labels = sentences};
  const model::LossScales scales(1.0 / static_cast<double>(tokens),
                                 1.0 / static_cast<double>(samples));
  const auto make = [&](int number, const model::Recompute& recompute = {}) {
    model::StageConfig own = config;
    own.recompute = recompute;
    own.fp32_embedding = false;  // a profile has no master weights
    auto stage = std::make_unique<model::PipelineStage>(
        own, backend, tensor, stages.parameters(number), stages.layout(), number, /*slots=*/1);
    stage->begin_batch();
    return stage;
  };
  const auto forward = [&](model::PipelineStage& stage) {
    stage.load(0, batch);
    stage.forward(0, /*training=*/true, scales);
  };
  struct Times {
    double forward, backward, input_gradient, weight_gradient;
  };
  const auto time = [&](model::PipelineStage& stage, bool divides = true) {
    const Tensor gradient = stage.gradient(0);
    const auto ahead = [&] { forward(stage); };
    const auto whole = time_passes(backend, repeats, {ahead, [&] { stage.backward(0, gradient); }});
    Times times{whole[0], whole[1], whole[1], 0};
    if (!divides) return times;
    const auto divided = time_passes(
        backend, repeats,
        {ahead, [&] { stage.backward_input(0, gradient); }, [&] { stage.backward_weights(0); }});
    times.weight_gradient = divided[2];
    return times;
  };
  const auto copy = [&](const Tensor& to, const Tensor& from) {
    backend.copy(to.data, from.data, from.bytes());
  };
  const auto first = make(0), blocks = make(1), last = make(2);
  const Times embedding = time(*first, false);
  copy(blocks->input(0), first->output(0));
  forward(*blocks);
  copy(last->input(0), blocks->output(0));
  const Times head = time(*last, false);
  copy(blocks->gradient(0), last->gradient(0));
  const Times block = time(*blocks);
  const double layers = static_cast<double>(deck.model.layers);
  const auto recomputed = [&](model::Recompute::What what) {
    const auto stage = make(1, {.what = what});
    copy(stage->input(0), first->output(0));
    copy(stage->gradient(0), last->gradient(0));
    return std::max(0.0, time(*stage, false).backward - block.backward) / layers;
  };
  plan::MeasuredPasses own{
      .family = deck.model.family,
      .compute = deck.precision.compute,
      .dropout = deck.model.dropout.hidden > 0 || deck.model.dropout.attention > 0,
      .sequence_parallel = deck.parallel.sequence,
      .ffn = deck.model.ffn,
      .vocab = vocab,
      .backward = {embedding.backward, block.backward / layers, head.backward},
      .weight_gradient = {0, block.weight_gradient / layers, 0},
      .recompute_full = recomputed(model::Recompute::What::uniform),
      .recompute_selective = recomputed(model::Recompute::What::norms)};
  return {.hidden = deck.model.hidden,
          .heads = deck.model.heads,
          .sequence = deck.model.sequence,
          .tensor = deck.parallel.tensor,
          .micro = deck.batch.micro,
          .forward = {embedding.forward, block.forward / layers, head.forward},
          .own = own};
}

}  // namespace trireme::bench
