#include "plan/search/step_time.hpp"

#include <algorithm>
#include <cmath>

#include "core/error.hpp"
#include "plan/setup.hpp"

namespace trireme::plan {
namespace {

// Host time of a block's backward pass over that of its forward pass, assumed: PyTorch's C++
// enqueues twice as many kernels, at a quarter of Python's time each.
constexpr double kHostBackward = 0.5;
// Steps above which the middle of a schedule, which repeats, is not simulated.
constexpr int kMaxSteps = 20000;

}  // namespace

LayoutTimes::LayoutTimes(const deck::Deck& deck, const ModelShape& shape, const NodeMap& nodes)
    : deck_(deck),
      shape_(shape),
      stages_(static_cast<int>(deck.parallel.pipeline)),
      chunks_(static_cast<int>(deck.parallel.interleave)),
      micro_batches_(plan::micro_batches(deck)) {
  const std::int64_t of_stage = ranks_of_stage(), ranks = of_stage * stages_;
  TRIREME_CHECK(ranks <= nodes.gpus(), "{} ranks on {} GPUs", ranks, nodes.gpus());
  set_passes(nodes, ranks);
  for (int stage = 0; stage < stages_; ++stage) stage_.push_back(make_stage(nodes, stage));
  if (stages_ > 1 && deck.model.tie_embeddings) embedding_seconds_ = embedding_time(nodes);
}

void LayoutTimes::set_passes(const NodeMap& nodes, std::int64_t ranks) {
  const Cluster& cluster = nodes.cluster();
  passes_.resize(cluster.nodes.size());
  const std::int64_t looked_at = nodes.uniform() ? 1 : ranks;
  std::vector<bool> used(cluster.nodes.size());
  for (std::int64_t rank = 0; rank < looked_at; ++rank) used[nodes.kind(rank)] = true;
  for (std::size_t kind = 0; kind < used.size(); ++kind) {
    if (!used[kind]) continue;
    const GpuKind& gpu = cluster.nodes[kind].gpu;
    passes_[kind] = pass_times(gpu, shape_);
    // Formulas are not compared with measured times of the same model.
    const auto same_model = [&](const Profile& profile) {
      return profile.hidden == shape_.hidden && profile.heads == shape_.heads &&
             profile.sequence == shape_.sequence;
    };
    computable_ &=
        passes_[kind].source == TimeSource::published ||
        (gpu.peak_of(shape_.compute) > 0 && std::ranges::none_of(gpu.profiles, same_model));
    divides_backward_ &= passes_[kind].weight_share_known();
    optimizer_constant_ = std::max(optimizer_constant_, passes_[kind].optimizer_constant);
  }
}

LayoutTimes::Stage LayoutTimes::make_stage(const NodeMap& nodes, int index) const {
  const std::int64_t tensor = deck_.parallel.tensor, of_stage = ranks_of_stage();
  const std::int64_t first = index * of_stage;
  const double element = shape_.compute == deck::Compute::fp32 ? 4 : 2;
  const double stream =
      element * static_cast<double>(shape_.micro * shape_.sequence * shape_.hidden);
  Stage stage;
  for (std::int64_t i = 0; i < (nodes.uniform() ? 1 : of_stage); ++i) {
    const PassTimes* times = &passes_[nodes.kind(first + i)];
    if (std::ranges::find(stage.kinds, times) == stage.kinds.end()) stage.kinds.push_back(times);
    const GpuKind& gpu = nodes.of(first + i).gpu;
    stage.optimizer =
        std::max(stage.optimizer, times->source == TimeSource::published ? times->optimizer
                                                                         : optimizer_time(gpu, 1));
  }
  double latency = 0;
  const PassTimes& times = *stage.kinds.front();
  const bool inside = nodes.on_one_node(first, 1, tensor);
  if (inside && times.tensor_forward && times.tensor_backward) {
    stage.tensor_forward = *times.tensor_forward;
    stage.tensor_backward = *times.tensor_backward;
    stage.tensor_output = (shape_.sequence_parallel ? 0.25 : 0.5) * stage.tensor_forward.block;
  } else if (tensor > 1 && times.source != TimeSource::published) {
    const double link = nodes.bandwidth(first, 1, tensor, 1, latency);
    // Through peer memory ranks wait for each other, the longer the more there are.
    if (inside && times.source == TimeSource::profile)
      latency *= std::log2(static_cast<double>(tensor));
    set_collectives(stage, all_reduce(stream, static_cast<double>(tensor), link, latency),
                    inside && takes_row_parts(nodes.of(first).gpu));
  }
  const GpuKind& gpu = nodes.of(first).gpu;
  const std::int64_t data = *deck_.parallel.data;
  stage.data_inside = nodes.on_one_node(first, tensor, data);
  if (gpu.measured && stage.data_inside) stage.collectives = &*gpu.measured;
  stage.link = nodes.bandwidth(first, tensor, data, tensor, stage.latency);
  if (stages_ == 1) return stage;
  const double message = stream / (shape_.sequence_parallel ? static_cast<double>(tensor) : 1.0);
  // The last stage sends to the first under an interleaved schedule.
  const std::int64_t next = index + 1 < stages_ ? first + of_stage : 0;
  for (std::int64_t i = 0; i < of_stage; i += rank_step(nodes)) {
    const double bandwidth = nodes.bandwidth(first + i, next - first, 2, of_stage, latency);
    if (bandwidth > 0) stage.transfer = std::max(stage.transfer, message / bandwidth + latency);
  }
  return stage;
}

double LayoutTimes::embedding_time(const NodeMap& nodes) const {
  const std::int64_t of_stage = ranks_of_stage();
  const double rows =
      static_cast<double>(shape_.vocab) / static_cast<double>(deck_.parallel.tensor);
  double latency = 0, slowest = 0;
  for (std::int64_t i = 0; i < of_stage; i += rank_step(nodes)) {
    const double bandwidth = nodes.bandwidth(i, of_stage * (stages_ - 1), 2, of_stage, latency);
    slowest = std::max(
        slowest, all_reduce(4 * rows * static_cast<double>(shape_.hidden), 2, bandwidth, latency));
  }
  return slowest;
}

std::int64_t LayoutTimes::rank_step(const NodeMap& nodes) const {
  return nodes.uniform() ? std::max<std::int64_t>(ranks_of_stage() - 1, 1) : 1;
}

double LayoutTimes::recomputed() const {
  const deck::Recompute& recompute = deck_.recompute;
  if (recompute.granularity != deck::Granularity::full) return 0;
  if (recompute.method != deck::RecomputeMethod::block) return 1;
  return std::min(1.0, static_cast<double>(*recompute.layers * stages_ * chunks_) /
                           static_cast<double>(shape_.layers));
}

double LayoutTimes::recomputed_outputs() const {
  if (deck_.recompute.method == deck::RecomputeMethod::block) return 0;
  return 1 - 1 / static_cast<double>(deck_.recompute.layers.value_or(1));
}

double LayoutTimes::recompute_time(const PassTimes& times) const {
  if (deck_.recompute.granularity == deck::Granularity::selective) return times.recompute_selective;
  return recomputed() * (times.recompute_full + recomputed_outputs() * times.recompute_output);
}

double LayoutTimes::block_time(int stage) const {
  double slowest = 0;
  for (const PassTimes* times : stage_[stage].kinds)
    slowest =
        std::max(slowest, times->forward.block + times->backward_block() + recompute_time(*times));
  return slowest + stage_[stage].tensor_forward.block + recomputed_collectives(stage_[stage]) +
         stage_[stage].tensor_backward.block;
}

double LayoutTimes::edge_time(int stage) const {
  double slowest = 0;
  for (const PassTimes* times : stage_[stage].kinds) {
    double seconds = 0;
    for (const UnitSeconds* part :
         {&times->forward, &times->input_gradient, &times->weight_gradient})
      seconds += (stage == 0 ? part->embedding : 0) + (stage == stages_ - 1 ? part->head : 0);
    slowest = std::max(slowest, seconds);
  }
  return slowest;
}

pipeline::StepCosts LayoutTimes::chunk_costs(int stage, int chunk, std::int64_t layers) const {
  const Stage& own = stage_[stage];
  const double blocks = static_cast<double>(layers);
  const double first = stage == 0 && chunk == 0,
               last = stage == stages_ - 1 && chunk == chunks_ - 1;
  const auto of = [&](const UnitSeconds& part) {
    return first * part.embedding + blocks * part.block + last * part.head;
  };
  // A pass takes as long as its kernels, or as the host needs to enqueue them.
  const auto waits = [&](double share, double kernels) {
    return blocks * std::max(0.0, share * shape_.host_forward - kernels);
  };
  const double again_tensor = recomputed_collectives(own);
  double forward = 0, backward = 0, weights = 0;
  for (const PassTimes* times : own.kinds) {
    const double again = recompute_time(*times) + again_tensor;
    const double whole = of(times->input_gradient) + of(times->weight_gradient) + blocks * again +
                         waits(kHostBackward + recomputed(),
                               times->backward_block() + own.tensor_backward.block + again);
    forward = std::max(
        forward, of(times->forward) + waits(1, times->forward.block + own.tensor_forward.block));
    if (whole <= backward) continue;
    backward = whole;
    weights = of(times->weight_gradient);
  }
  forward += of(own.tensor_forward);
  backward += of(own.tensor_backward);
  return {.forward = forward,
          .backward = backward,
          .transfer = own.transfer,
          .weight_share = backward > 0 ? weights / backward : 0.5};
}

std::vector<pipeline::StepCosts> LayoutTimes::costs(
    const std::vector<std::int64_t>& partition) const {
  std::vector<pipeline::StepCosts> costs;
  for (int chunk = 0; chunk < chunks_; ++chunk)
    for (int stage = 0; stage < stages_; ++stage)
      costs.push_back(chunk_costs(stage, chunk, partition[stage] / chunks_));
  return costs;
}

std::vector<double> LayoutTimes::ends(const std::vector<pipeline::StepCosts>& costs) const {
  const double m = micro_batches_;
  if (stages_ == 1) return {m * (costs[0].forward + costs[0].backward)};
  const auto same = [](const pipeline::StepCosts& a, const pipeline::StepCosts& b) {
    return a.forward == b.forward && a.backward == b.backward && a.transfer == b.transfer;
  };
  if (std::ranges::equal(costs, simulated_, same)) return simulated_ends_;
  if (schedules_.empty()) {
    pipeline::PipelineShape shape = pipeline_shape(deck_);
    const int of_steps = kMaxSteps / (2 * stages_ * chunks_) / stages_ * stages_;
    scheduled_micro_batches_ = shape.micro_batches =
        std::min(micro_batches_, std::max(4 * stages_, of_steps));
    schedules_ = pipeline::make_schedules(shape);
  }
  const auto rule = deck_.parallel.overlap.pipeline ? pipeline::SendRule::overlapped
                                                    : pipeline::SendRule::exchanged;
  std::vector<double> ends = pipeline::stage_ends(schedules_, costs, rule);
  // The middle of a long schedule repeats at the pace of the slowest stage.
  double pace = 0;
  for (int stage = 0; stage < stages_; ++stage) {
    double busy = 0;
    for (std::size_t i = stage; i < costs.size(); i += stages_)
      busy += costs[i].forward + costs[i].backward;
    pace = std::max(pace, busy);
  }
  for (double& end : ends) end += pace * (micro_batches_ - scheduled_micro_batches_);
  simulated_ = costs;
  simulated_ends_ = ends;
  return ends;
}

double LayoutTimes::makespan(const std::vector<std::int64_t>& partition) const {
  return std::ranges::max(ends(costs(partition)));
}

double LayoutTimes::lower_bound() const {
  // Each stage at least as fast as the fastest; one micro-batch's way through all of them, then the
  // other micro-batches on the stage with the head; or the mean work of a stage.
  double block = block_time(0), head = edge_time(stages_ - 1);
  for (int stage = 1; stage < stages_; ++stage) block = std::min(block, block_time(stage));
  const double all =
      static_cast<double>(shape_.layers) * block + edge_time(0) + (stages_ > 1 ? head : 0);
  const double trip = all + (micro_batches_ - 1) * (stages_ > 1 ? head : all);
  const bool fills = deck_.parallel.schedule != deck::PipelineSchedule::zero_bubble;
  return std::max(fills ? trip : 0.0, micro_batches_ * all / stages_) + after_pipeline();
}

double LayoutTimes::after_pipeline() const {
  const double shards = deck_.parallel.zero > 0 ? static_cast<double>(*deck_.parallel.data) : 1;
  double optimizer = stage_[0].optimizer;
  for (const Stage& stage : stage_) optimizer = std::min(optimizer, stage.optimizer);
  // Of a stage without embedding and head, with an equal share of the layers.
  double seconds = embedding_seconds_ + optimizer_constant_;
  const double share = static_cast<double>(shape_.layers) / stages_;
  const double block = parameters(-1, 1);
  seconds += optimizer * share * block / shards;
  if (stages_ == 1) seconds += exposed_data(0, shape_.layers, chunk_costs(0, 0, shape_.layers));
  return seconds;
}

bool LayoutTimes::one_f_one_b() const {
  return deck_.parallel.schedule == deck::PipelineSchedule::one_f_one_b;
}

double LayoutTimes::parameters(int stage, std::int64_t layers) const {
  const double h = static_cast<double>(shape_.hidden), f = static_cast<double>(shape_.ffn);
  const double tensor = static_cast<double>(shape_.tensor);
  const double heads = shape_.head_share * h * (2 + 2 * shape_.kv_share);  // q, k, v, projection
  const double matrices = heads * h + (shape_.gated ? 3 : 2) * h * f;
  const double biases = shape_.biases ? 3 * h + f : 0;
  double count =
      static_cast<double>(layers) * ((matrices + biases) / tensor + (shape_.biases ? 6 : 2) * h);
  const double words = static_cast<double>(shape_.vocab) * h / tensor;
  if (stage == 0)
    count += words + static_cast<double>(shape_.rotary ? 0 : deck_.model.positions) * h;
  if (stage == stages_ - 1)
    count += (stages_ > 1 || !deck_.model.tie_embeddings ? words : 0) + 2 * h;
  return count;
}

StepTime LayoutTimes::step_time(const std::vector<std::int64_t>& partition, bool messages) const {
  auto all = costs(partition);
  const double m = micro_batches_;
  const std::vector<double> stage_ends = ends(all);
  if (messages)
    for (pipeline::StepCosts& costs : all) costs.transfer = 0;
  const std::vector<double> unhindered = ends(all);
  StepTime step;
  int critical = 0;
  double latest = -1, most_busy = -1;
  for (int stage = 0; stage < stages_; ++stage) {
    pipeline::StepCosts whole{0, 0};
    for (int chunk = 0; chunk < chunks_; ++chunk) {
      whole.forward += all[chunk * stages_ + stage].forward;
      whole.backward += all[chunk * stages_ + stage].backward;
    }
    latest = std::max(latest, stage_ends[stage] + exposed_data(stage, partition[stage], whole));
    const double shards = deck_.parallel.zero > 0 ? static_cast<double>(*deck_.parallel.data) : 1;
    step.optimizer = std::max(
        step.optimizer, stage_[stage].optimizer * parameters(stage, partition[stage]) / shards);
    if (whole.forward + whole.backward <= most_busy) continue;
    most_busy = whole.forward + whole.backward;
    critical = stage;
  }
  const double end = std::ranges::max(stage_ends);
  const Stage& stage = stage_[critical];
  const double blocks = static_cast<double>(partition[critical]);
  double again = 0;
  for (const PassTimes* times : stage.kinds) again = std::max(again, recompute_time(*times));
  step.recompute = m * blocks * (again + recomputed_collectives(stage));
  for (const UnitSeconds* part : {&stage.tensor_forward, &stage.tensor_backward})
    step.tensor += m * (blocks * part->block + (critical == 0) * part->embedding +
                        (critical == stages_ - 1) * part->head);
  step.compute = m * most_busy - step.recompute - step.tensor;
  step.messages = std::max(0.0, end - std::ranges::max(unhindered));
  step.bubble = end - m * most_busy - step.messages;
  step.data = latest - end;
  step.embedding = embedding_seconds_;
  step.optimizer += optimizer_constant_;
  step.total = latest + step.embedding + step.optimizer;
  return step;
}

}  // namespace trireme::plan
