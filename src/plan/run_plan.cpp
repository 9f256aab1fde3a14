#include "plan/run_plan.hpp"

#include <fmt/ranges.h>

#include <algorithm>

#include "comm/communicator.hpp"
#include "comm/mpi/mpi_communicator.hpp"
#include "core/files.hpp"
#include "core/tensor.hpp"
#include "core/text.hpp"
#include "deck/deck.hpp"
#include "model/layers/block.hpp"
#include "model/spec.hpp"
#include "model/stage/pipeline_stage.hpp"
#include "pipeline/schedule.hpp"
#include "plan/setup.hpp"

namespace trireme::plan {
namespace {

// Resident memory of a rank that has started MPI, OpenBLAS and HDF5 and holds no model: measured
// with Open MPI 4.1 and OpenBLAS 0.3.21 on Debian 12, one and two threads. With other ranks of the
// node a rank also maps their shared memory.
constexpr std::size_t kLibraryBytes = 30u << 20, kSharedMemoryBytes = 1u << 20;
// Memory of a GPU with a CUDA context, the kernels and cuBLASLt, and no model: measured on an H200.
constexpr std::size_t kGpuLibraryBytes = 600u << 20;
// NCCL 2.28's own memory: what its first communicator takes, midway between 512 MiB on 4 H200s and
// 620 on 2, and what each one takes.
constexpr std::size_t kNcclBytes = 576u << 20, kNcclCommunicatorBytes = 185u << 20;
// What it takes when no operation goes through its one communicator: two data ranks on H200s.
constexpr std::size_t kIdleNcclBytes = 331u << 20;
// What it took more where data ranks are copies of one of several shards, of two stages on 4 H200s,
// of two tensor shards on 4 H100s; and where tensor ranks of stages reduce the gradients of norms
// under sequence parallelism, on 4 H100s.
constexpr std::size_t kNcclMoreReductionsBytes = 320u << 20;

/// Whether copy engines reduce and gather what ZeRO shards: where the data ranks, between which
/// the tensor ranks lie, are on one node.
bool data_by_copies(const deck::Deck& deck, const grid::Layout& layout, int node_ranks) {
  const bool possible = layout.data == 2 || layout.data == 4 || layout.data == 8;
  return deck.parallel.zero > 0 && possible && layout.tensor * layout.data <= node_ranks;
}

/// What communication takes on a rank of `stage`: a NCCL communicator for each axis of more than
/// one rank, of which data ranks may not use theirs, and for the tied embedding; and for each route
/// to and from a neighbour in the chain of stages, which is a ring when it goes round more than
/// once, another one or, within a node, a mailbox for a message.
std::size_t communication_bytes(const deck::Deck& deck, const grid::Layout& layout, int stage,
                                int node_ranks) {
  // Muon gathers matrices from their shards through NCCL.
  const bool idle_data =
      data_by_copies(deck, layout, node_ranks) && deck.optimizer.type != deck::OptimizerType::muon;
  const bool nccl_data = layout.data > 1 && !idle_data;
  const bool sequence_parallel = deck.parallel.sequence;
  int communicators = (layout.tensor > 1) + nccl_data;
  std::size_t mailboxes = 0;
  if (layout.pipeline > 1) {
    const bool at_an_end = layout.is_first(stage) || layout.is_last(stage);
    const int routes = at_an_end && layout.chunks == 1 ? 2 : 4;
    communicators += 1 + (at_an_end ? 1 : 0);
    if (layout.ranks() <= node_ranks)
      mailboxes = routes * comm::peer_route_bytes(message_bytes(deck));
    else
      communicators += routes;
  }
  if (communicators == 0) return idle_data ? kIdleNcclBytes : 0;
  const bool reduces_more = nccl_data
                                ? layout.tensor > 1 || layout.pipeline > 1
                                : sequence_parallel && layout.tensor > 1 && layout.pipeline > 1;
  const std::size_t more = reduces_more ? kNcclMoreReductionsBytes : 0;
  return kNcclBytes + communicators * kNcclCommunicatorBytes + more + mailboxes;
}

// MPI's memory for each peer beyond the first that a rank reduces shards with and gathers them
// from; measured with 8 data ranks of one host.
constexpr std::size_t kShardPeerBytes = 1u << 20;

/// Buffers of reductions on the host, which travel in chunks: what MPI takes for a chunk and, when
/// ZeRO shards (`sharded`), for its peers (measured), and the chunk of a 16-bit reduction in fp32.
/// `parameters` are those of the rank.
std::size_t reduction_bytes(const grid::Layout& layout, const Precision& precision, bool sharded,
                            std::int64_t parameters) {
  const auto is_16_bit = [](DType dtype) { return dtype != accumulation_type(dtype); };
  const std::size_t chunk =
      std::min(comm::kMaxReduction, static_cast<std::size_t>(parameters)) * sizeof(float);
  const bool widens = (layout.tensor > 1 && is_16_bit(precision.activations)) ||
                      (layout.data > 1 && is_16_bit(precision.gradients));
  const std::size_t mpi = layout.data > 1       ? chunk
                          : layout.pipeline > 1 ? chunk / 2  // of the tied embedding
                                                : 0;
  const std::size_t peers = sharded && layout.data > 2 ? (layout.data - 2) * kShardPeerBytes : 0;
  return mpi + peers + (widens ? chunk : 0);
}

StagePlan plan_stage(const deck::Deck& deck, const grid::Layout& layout,
                     const model::StageConfig& config, const std::vector<model::Parameter>& table,
                     const pipeline::StageSchedule& schedule, int stage, int node_ranks) {
  const bool on_gpu = deck.run.device == deck::Device::cuda;
  StagePlan plan{.slots = pipeline::count_slots(schedule)};
  for (int chunk = 0; chunk < layout.chunks; ++chunk)
    plan.chunks.push_back(layout.layers_of(stage, chunk));
  const model::Placement placement = model::place_parameters(table, layout, {.pipeline = stage});
  for (const model::LocalParameter& local : placement.parameters)
    plan.parameters += local.shape.size();
  const auto [weights, gradients] = model::ParameterStore::planned_bytes(
      placement, layout.data, config.precision, store_options(deck));
  const model::StageMemory memory = model::PipelineStage::plan(config, layout, stage, plan.slots);
  const bool has_copies = (deck.checkpoint.every && deck.checkpoint.async.value_or(on_gpu)) ||
                          deck.checkpoint.local.path.has_value();
  const std::size_t copies = has_copies
                                 ? optim::Optimizer::checkpoint_bytes(
                                       placement, layout, optimizer_config(deck), config.precision)
                                 : 0;
  const std::size_t reductions =
      !on_gpu ? reduction_bytes(layout, config.precision, deck.parallel.zero > 0, plan.parameters)
      : data_by_copies(deck, layout, node_ranks) ? optim::kReductionStaging
                                                 : 0;
  const std::size_t libraries =
      on_gpu ? kGpuLibraryBytes + communication_bytes(deck, layout, stage, node_ranks)
             : kLibraryBytes + (layout.ranks() > 1 ? kSharedMemoryBytes : 0);
  plan.memory = {.weights = weights + memory.fp8_weights,
                 .gradients = gradients,
                 .optimizer = optim::Optimizer::planned_bytes(
                                  placement, layout, optimizer_config(deck), config.precision) +
                              (on_gpu ? 0 : copies),
                 .activations = memory.activations + (on_gpu ? 0 : memory.host),
                 .workspace = memory.workspace + (on_gpu ? model::kernel_workspace_bytes(config)
                                                         : model::host_gemm_bytes(config)),
                 .communication = memory.communication + reductions,
                 .libraries = libraries,
                 .host = on_gpu ? memory.host + copies : 0};
  return plan;
}

double bubble_fraction(const std::vector<pipeline::StageSchedule>& schedules, int micro_batches) {
  return pipeline::simulate(schedules, micro_batches, {.forward = 1, .backward = 2}).bubble;
}

/// How the batch grows, in words; "" when it does not.
std::string rampup_text(const deck::Deck& deck) {
  const auto& [start, step, samples] = deck.batch.rampup;
  if (!samples) return "";
  const deck::Progress end = deck::BatchSizes(deck.batch).reach({}, *samples + 1);
  return fmt::format("batches of {} to {} samples, by {}, in the first {}: {} samples", *start,
                     deck.batch.global, *step, counted(end.iteration, "iteration"), end.samples);
}

// Below this hidden size the conversions of a layer take about as long as FP8 GEMMs save: published
// runs gain nothing at 768 and 10 % at 896, 24 % at 1536.
constexpr std::int64_t kMinFp8Hidden = 1024;

/// Which GEMMs are in FP8, in words; "" when none is.
std::string fp8_text(const model::StageConfig& config) {
  if (!is_fp8(config.precision.gemm)) return "";
  int layers = 0, linears = 0, in_fp8 = 0;
  for (int layer = 0; layer < config.spec.layers(); ++layer) {
    if (!config.spec.blocks[layer].fp8) continue;
    ++layers;
    const model::TransformerBlock block(config.spec, layer);
    for (const model::Linear* linear : block.fp8_linears()) {
      ++linears;
      in_fp8 += linear->in_fp8(config.sizes()) ? 1 : 0;
    }
  }
  const bool blocks = config.spec.blocks.front().fp8_blocks;
  std::string text =
      fmt::format("{} of {} layers' GEMMs ({} x {}, one scale {})", layers, config.spec.layers(),
                  name_of(config.precision.gemm), name_of(config.precision.gemm_gradients),
                  blocks ? "for each block of 128 x 128 or 1 x 128" : "a tensor");
  if (in_fp8 < linears)
    text += fmt::format(
        "; {} of their {} linears stay in {}, since tokens of a micro-batch, inputs or outputs of "
        "a tensor rank are no multiples of 16{}",
        linears - in_fp8, linears, name_of(config.precision.activations),
        blocks && config.tensor_ranks > 1
            ? fmt::format(", or those that parallel.tensor = {} shards no multiples of {}",
                          config.tensor_ranks, kernels::kScaleBlock)
            : "");
  if (config.spec.hidden < kMinFp8Hidden)
    text += fmt::format("; with model.hidden = {} conversions cost about what FP8 gains",
                        config.spec.hidden);
  return text;
}

/// "0-1,4-5": the layers of each chunk.
std::string layer_text(const std::vector<grid::LayerRange>& chunks) {
  std::vector<std::string> words;
  for (const grid::LayerRange& layers : chunks) {
    if (layers.count == 0)
      words.push_back("-");
    else if (layers.count == 1)
      words.push_back(fmt::format("{}", layers.first));
    else
      words.push_back(fmt::format("{}-{}", layers.first, layers.first + layers.count - 1));
  }
  return fmt::format("{}", fmt::join(words, ","));
}

/// Elements of the parameters after the embeddings, which are the first stage's.
std::int64_t count_without_embeddings(const std::vector<model::Parameter>& table) {
  std::int64_t count = 0;
  for (const model::Parameter& parameter : table)
    if (parameter.stage != model::StagePlacement::first_stage) count += parameter.shape.size();
  return count;
}

}  // namespace

const StagePlan& RunPlan::largest() const {
  return *std::max_element(
      stages.begin(), stages.end(),
      [](const StagePlan& a, const StagePlan& b) { return a.memory.total() < b.memory.total(); });
}

struct StagePlanner::Model {
  std::int64_t vocab;
  int node_ranks;
  std::vector<model::Parameter> table;
};

StagePlanner::StagePlanner(const deck::Deck& deck, std::int64_t vocab, int node_ranks)
    : model_(std::make_unique<Model>(
          Model{vocab, node_ranks,
                model::declare_parameters(model_spec(deck, {.size = vocab, .eod = {}}))})) {}

StagePlanner::~StagePlanner() = default;

MemoryPlan StagePlanner::stage(const deck::Deck& deck, int stage, std::int64_t layers) const {
  const model::StageConfig config = stage_config(deck, {.size = model_->vocab, .eod = {}});
  pipeline::PipelineShape shape = pipeline_shape(deck);
  const int fills = 2 * shape.stages * shape.chunks;
  shape.micro_batches = std::min(shape.micro_batches, fills);
  grid::Layout layout{.tensor = static_cast<int>(deck.parallel.tensor),
                      .data = static_cast<int>(*deck.parallel.data),
                      .pipeline = shape.stages,
                      .partition = std::vector<int>(shape.stages, 0),
                      .chunks = shape.chunks};
  // The other layers are anywhere else.
  if (shape.chunks > 1)
    layout.partition.assign(shape.stages, static_cast<int>(layers));
  else if (shape.stages > 1)
    layout.partition[stage == 0 ? shape.stages - 1 : 0] =
        static_cast<int>(config.spec.blocks.size() - layers);
  layout.partition[stage] = static_cast<int>(layers);
  return plan_stage(deck, layout, config, model_->table, pipeline::make_schedule(shape, stage),
                    stage, model_->node_ranks)
      .memory;
}

RunPlan plan_run(const deck::Deck& deck, std::int64_t vocab, int node_ranks) {
  const model::StageConfig config = stage_config(deck, {.size = vocab, .eod = std::nullopt});
  const std::vector<model::Parameter> table = model::declare_parameters(config.spec);
  const pipeline::PipelineShape shape = pipeline_shape(deck);
  const std::vector<pipeline::StageSchedule> schedules = pipeline::make_schedules(shape);
  RunPlan plan{.layout = layout(deck),
               .parameters = model::count_elements(table),
               .parameters_without_embeddings = count_without_embeddings(table),
               .iterations = deck::total_iterations(deck),
               .tokens_per_step = deck.batch.global * deck.model.sequence,
               .micro_batches = micro_batches(deck),
               .rampup = rampup_text(deck),
               .fp8 = fp8_text(config),
               .schedule = std::string(name_of(deck.parallel.schedule)),
               .bubble = bubble_fraction(schedules, shape.micro_batches),
               .copies_where_free = deck.run.device == deck::Device::cuda &&
                                    deck.checkpoint.every && !deck.checkpoint.async &&
                                    !deck.checkpoint.local.path};
  for (int stage = 0; stage < plan.layout.pipeline; ++stage)
    plan.stages.push_back(
        plan_stage(deck, plan.layout, config, table, schedules[stage], stage, node_ranks));
  return plan;
}

std::string to_text(const RunPlan& plan) {
  const grid::Layout& layout = plan.layout;
  std::size_t width = 8;  // of the column of layers
  bool on_host = false;
  for (const StagePlan& part : plan.stages) {
    width = std::max(width, layer_text(part.chunks).size());
    on_host |= part.memory.host > 0;
  }
  std::string text = fmt::format(
      "ranks      {} = tensor {} x pipeline {} x data {}, layers per stage {}\n"
      "parameters {:.2f} M, {} of {} in {} per data rank, pipeline bubble {:.1f} % ({})\n"
      "{}"
      "memory per rank\n"
      "{:>6} {:>{}} {:>12} {:>6} {:>10} {:>10} {:>10} {:>12} {:>10} {:>10} {:>10} {:>10}{}\n",
      layout.ranks(), layout.tensor, layout.pipeline, layout.data, fmt::join(layout.partition, "-"),
      plan.parameters / 1e6, counted(plan.iterations, "iteration"),
      counted(plan.tokens_per_step, "token"), counted(plan.micro_batches, "micro-batch"),
      100.0 * plan.bubble, plan.schedule,
      (plan.rampup.empty() ? "" : fmt::format("ramp-up    {}\n", plan.rampup)) +
          (plan.fp8.empty() ? "" : fmt::format("FP8        {}\n", plan.fp8)),
      "stage", "layers", width, "parameters", "slots", "weights", "gradients", "optimizer",
      "activations", "workspace", "transfers", "libraries", "total", on_host ? "    on host" : "");
  for (std::size_t stage = 0; stage < plan.stages.size(); ++stage) {
    const StagePlan& part = plan.stages[stage];
    const MemoryPlan& memory = part.memory;
    const auto bytes = [](std::size_t value) { return human_bytes(static_cast<double>(value)); };
    text += fmt::format(
        "{:>6} {:>{}} {:>12} {:>6} {:>10} {:>10} {:>10} {:>12} {:>10} {:>10} {:>10} {:>10}{}\n",
        stage, layer_text(part.chunks), width, part.parameters, part.slots, bytes(memory.weights),
        bytes(memory.gradients), bytes(memory.optimizer), bytes(memory.activations),
        bytes(memory.workspace), bytes(memory.communication), bytes(memory.libraries),
        bytes(memory.total()), on_host ? fmt::format(" {:>10}", bytes(memory.host)) : "");
  }
  if (plan.copies_where_free)
    text +=
        "on host: with the copies of checkpoint.async, which is not set: a run makes them where "
        "half of a host's free memory has room\n";
  return text;
}

}  // namespace trireme::plan
