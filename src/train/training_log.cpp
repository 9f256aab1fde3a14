#include "train/training_log.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>

#include "core/clock.hpp"
#include "core/system/process.hpp"
#include "device/backend.hpp"
#include "train/startup/launch.hpp"

namespace trireme::train {
namespace {

/// The figures of a GPU as they travel; an index below zero stands for no GPU.
constexpr int kFigures = 6;

void pack(const device::GpuReading& reading, double* figures) {
  const double values[kFigures] = {static_cast<double>(reading.index),
                                   reading.utilisation,
                                   reading.memory,
                                   reading.memory_total,
                                   reading.temperature,
                                   reading.power};
  std::copy(std::begin(values), std::end(values), figures);
}

report::GpuUse unpack(const std::string& host, const double* figures) {
  return {.host = host,
          .index = static_cast<int>(figures[0]),
          .utilisation = figures[1],
          .memory = figures[2],
          .memory_total = figures[3],
          .temperature = figures[4],
          .power = figures[5]};
}

}  // namespace

GpuWatch::GpuWatch(const deck::Deck& deck, comm::MpiCommunicator& world) {
  const auto node = world.split_by_node();
  std::vector<std::string> bus_ids;
  if (deck.run.device == deck::Device::cuda)  // as make_devices gives each rank its GPU
    bus_ids = node->all_gather_text(device::visible_gpus().at(node->rank()).bus_id);
  leaders_ = world.split(node->rank() == 0 ? 0 : -1, world.rank(), "first ranks of nodes");
  if (!leaders_) return;
  start(deck, bus_ids);
  hosts_ = leaders_->all_gather_text(host_name());
  const int gpus = sampler_ ? sampler_->gpus() : 0;
  most_gpus_ = static_cast<int>(leaders_->all_reduce(gpus, comm::Reduce::max));
}

void GpuWatch::start(const deck::Deck& deck, const std::vector<std::string>& bus_ids) {
  const std::filesystem::path log = rank_file(deck.run.output, ".gpu");
  try {
    sampler_ = std::make_unique<device::GpuSampler>(device::Nvml(bus_ids), log);
  } catch (const Error& error) {
    std::ofstream(log, std::ios::app)
        << local_date_time(unix_time()) << " no GPU is watched: " << error.what() << '\n';
    if (!deck.log.gpu_every) return;
    std::fputs(fmt::format("warning: {}: no GPU is watched (log.gpu_every): {}\n",
                           process_identity(), error.what())
                   .c_str(),
               stderr);
  }
}

report::GpuEvent GpuWatch::gather() {
  report::GpuEvent event;
  if (!leaders_ || most_gpus_ == 0) return event;
  const int per_node = most_gpus_ * kFigures;
  std::vector<double> all(leaders_->size() * per_node, -1.0);
  double* mine = all.data() + leaders_->rank() * per_node;
  if (sampler_)
    for (const device::GpuReading& reading : sampler_->take()) {
      pack(reading, mine);
      mine += kFigures;
    }
  leaders_->all_gather(all.data(), per_node, DType::f64);
  for (std::size_t gpu = 0; gpu < all.size(); gpu += kFigures)
    if (all[gpu] >= 0.0) event.gpus.push_back(unpack(hosts_[gpu / per_node], all.data() + gpu));
  return event;
}

namespace {

/// This rank's memory as report::RankMemory defines it.
report::RankMemory rank_memory(const device::Backend& backend, int rank) {
  const device::Backend::Memory gpu = backend.memory();
  if (gpu.total > 0) {
    const auto bytes = [](std::size_t value) { return static_cast<std::int64_t>(value); };
    return {rank, bytes(gpu.allocated), bytes(gpu.max_allocated), bytes(gpu.used), bytes(gpu.used)};
  }
  const ProcessMemory process = process_memory();
  return {rank, process.resident, process.peak, process.address_space, process.peak_address_space};
}

/// That of the ranks with the first copy of the model. Collective over the world.
std::vector<report::RankMemory> memory_of_first_copy(const device::Backend& backend,
                                                     const comm::Groups& groups) {
  const report::RankMemory own = rank_memory(backend, groups.world->rank());
  // Each rank's five figures: a zero in the first, a copy's number, tells the first copy.
  constexpr int kFigures = 5;
  std::vector<double> all(groups.world->size() * kFigures);
  double* mine = all.data() + groups.world->rank() * kFigures;
  mine[0] = groups.place.data;
  mine[1] = static_cast<double>(own.allocated);
  mine[2] = static_cast<double>(own.max_allocated);
  mine[3] = static_cast<double>(own.reserved);
  mine[4] = static_cast<double>(own.max_reserved);
  groups.world->all_gather(all.data(), kFigures, DType::f64);
  std::vector<report::RankMemory> ranks;
  for (int rank = 0; rank < groups.world->size(); ++rank) {
    const double* figures = all.data() + rank * kFigures;
    const auto bytes = [&](int i) { return static_cast<std::int64_t>(figures[i]); };
    if (figures[0] == 0.0) ranks.push_back({rank, bytes(1), bytes(2), bytes(3), bytes(4)});
  }
  return ranks;
}

}  // namespace

report::TimersEvent timers_event(device::Timers& timers, std::span<const device::Phase> phases,
                                 double iterations, comm::Communicator& world) {
  // The largest of the negative times is the smallest time; ranks without one are below all.
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  std::vector<double> extremes;
  std::optional<double> passes;
  for (const device::Phase phase : phases) {
    const std::optional<double> ms = timers.take(phase);
    extremes.push_back(ms ? -*ms / iterations : kNone);
    extremes.push_back(ms ? *ms / iterations : kNone);
    if (phase == device::Phase::forward || phase == device::Phase::backward)
      passes = passes.value_or(0.0) + ms.value_or(0.0) / iterations;
  }
  world.all_reduce(extremes.data(), extremes.size(), DType::f64, comm::Reduce::max);
  report::TimersEvent event;
  for (std::size_t i = 0; i < phases.size(); ++i)
    if (extremes[2 * i] != kNone)
      event.timers.push_back(
          {std::string(device::name_of(phases[i])), -extremes[2 * i], extremes[2 * i + 1]});
  if (passes) {
    // Collectives over host memory end within the pass that starts them, and there wait for the
    // slowest rank: with that all ranks would look alike.
    *passes -= timers.take(device::Phase::waiting).value_or(0.0) / iterations;
    event.rank_ms.resize(world.size());
    event.rank_ms[world.rank()] = *passes;
    world.all_gather(event.rank_ms.data(), 1, DType::f64);
  }
  return event;
}

report::MemoryEvent memory_in_use(const device::Backend& backend, const comm::Groups& groups) {
  // Before the peak is read: no rank's figure is above it.
  std::vector<report::RankMemory> ranks = memory_of_first_copy(backend, groups);
  const ProcessMemory process = process_memory();
  // The largest rank decides whether the job fits.
  const auto largest = [&](std::int64_t bytes) {
    return static_cast<std::int64_t>(
        groups.world->all_reduce(static_cast<double>(bytes), comm::Reduce::max));
  };
  return {.resident_bytes = largest(process.resident),
          .peak_bytes = largest(process.peak),
          .gpu_bytes = largest(static_cast<std::int64_t>(backend.memory().used)),
          .ranks = std::move(ranks)};
}

namespace {

using device::Phase;

/// The timers that are reported with each training line, in Megatron-LM's order.
constexpr Phase kIterationPhases[] = {
    Phase::forward_backward, Phase::forward,       Phase::backward, Phase::batch,
    Phase::grads_sync,       Phase::gradient_norm, Phase::update,   Phase::optimizer};

}  // namespace

TrainingLog::TrainingLog(const deck::Deck& deck, const plan::Vocabulary& vocabulary,
                         const plan::RunPlan& plan, comm::Groups& groups, device::Backend& backend,
                         report::Reporter* reporter)
    : deck_(deck),
      vocabulary_(vocabulary),
      plan_(plan),
      groups_(groups),
      backend_(backend),
      reporter_(reporter) {
  if (deck_.log.timers) timers_.emplace(backend);
}

void TrainingLog::start() {
  if (deck_.log.gpu_every || deck_.log.rank_files) gpu_watch_.emplace(deck_, *groups_.world);
  interval_ = {};
}

void TrainingLog::add(const StepResult& result) {
  const bool finite = result.has_finite_loss();
  const double sentence_loss = result.sentence_loss.value_or(0.0);
  if (finite) {
    interval_.loss += result.loss;
    interval_.sentence_loss += sentence_loss;
  }
  if (finite && result.applied) {
    interval_.applied_loss += result.loss;
    interval_.applied_sentence_loss += sentence_loss;
    ++interval_.applied;
  }
  interval_.nan += !finite;
  interval_.skipped += !result.applied;
  ++interval_.iterations;
  interval_.samples += result.samples;
  interval_.last = result;
}

void TrainingLog::report(const RunState& state, std::optional<double> parameter_norm) {
  report::TrainEvent event = train_event(state);
  event.parameter_norm = parameter_norm;
  if (reporter_) reporter_->on(event);
  if (deck_.log.memory && !memory_reported_) report_memory(state.iteration);
  compare_with_expected(event.ms,
                        report_timers(kIterationPhases, state.iteration, interval_.iterations));
  interval_ = {};
}

void TrainingLog::compare_with_expected(double ms, const report::TimersEvent& timers) {
  if (++intervals_ < 2 || !expected_ || !reporter_) return;
  const auto of = [&](Phase phase) {
    for (const report::TimerValue& timer : timers.timers)
      if (timer.name == device::name_of(phase)) return timer.max_ms;
    return 0.0;
  };
  reporter_->print(plan::compare(*expected_, {.ms = ms,
                                              .passes = of(Phase::forward_backward),
                                              .reduction = of(Phase::grads_sync),
                                              .optimizer = of(Phase::optimizer)}));
  expected_ = nullptr;
}

double TrainingLog::mean_loss(double sum, double applied_sum) const {
  if (interval_.applied > 0) return applied_sum / static_cast<double>(interval_.applied);
  const std::int64_t finite = interval_.iterations - interval_.nan;
  return finite > 0 ? sum / static_cast<double>(finite) : std::nan("");
}

report::TrainEvent TrainingLog::train_event(const RunState& state) const {
  const StepResult& result = interval_.last;
  const double seconds = interval_.watch.seconds();
  const deck::Model& model = deck_.model;
  const double tokens = static_cast<double>(interval_.samples * model.sequence);
  const double flops = tokens * model::flops_per_token(deck_, vocabulary_.size);
  const double flops_per_rank = flops / seconds / groups_.layout.ranks();
  const double peak = device::peak_flops(backend_.gpu_name(), plan::mfu_type(deck_));
  std::optional<double> sentence_loss;
  if (result.sentence_loss)
    sentence_loss = mean_loss(interval_.sentence_loss, interval_.applied_sentence_loss);
  std::optional<report::LayerNorms> layer_norms;
  if (const auto& norms = result.layer_norms)
    layer_norms = {norms->gradient, norms->update, norms->parameters};
  return {.iteration = state.iteration,
          .consumed_samples = state.consumed_samples,
          .consumed_tokens = state.consumed_samples * model.sequence,
          .loss = mean_loss(interval_.loss, interval_.applied_loss),
          .sentence_loss = sentence_loss,
          .grad_norm = std::abs(result.gradient_norm),  // a NaN must show no sign
          .gradient_zeros = result.gradient_zeros,
          .largest_logit = result.largest_logit,
          .layer_norms = layer_norms,
          .learning_rate = result.learning_rate,
          .loss_scale = result.loss_scale,
          .global_batch = result.samples,
          .ms = 1e3 * seconds / static_cast<double>(interval_.iterations),
          .tokens_per_second = tokens / seconds,
          .model_tflops_per_rank = flops_per_rank / 1e12,
          .mfu = peak > 0.0 ? std::optional(flops_per_rank / peak) : std::nullopt,
          .skipped = interval_.skipped,
          .nan = interval_.nan};
}

void TrainingLog::report_memory(std::int64_t iteration) {
  memory_reported_ = true;
  report::MemoryEvent event = memory_in_use(backend_, groups_);
  event.iteration = iteration;
  const plan::MemoryPlan& planned = plan_.largest().memory;
  event.planned_bytes = static_cast<std::int64_t>(planned.total());
  for (const auto& [purpose, bytes] :
       {std::pair("weights", planned.weights), std::pair("gradients", planned.gradients),
        std::pair("optimizer", planned.optimizer), std::pair("activations", planned.activations),
        std::pair("workspace", planned.workspace),
        std::pair("communication", planned.communication),
        std::pair("libraries", planned.libraries)})
    event.purposes.emplace_back(purpose, static_cast<std::int64_t>(bytes));
  if (reporter_) reporter_->on(event);
}

void TrainingLog::report_gpus(std::int64_t iteration) {
  report::GpuEvent event = gpu_watch_->gather();
  event.iteration = iteration;
  if (reporter_ && !event.gpus.empty()) reporter_->on(event);
}

void TrainingLog::report_timer(Phase phase, std::int64_t iteration) {
  report_timers({&phase, 1}, iteration);
}

report::TimersEvent TrainingLog::report_timers(std::span<const Phase> phases,
                                               std::int64_t iteration, std::int64_t iterations) {
  if (!timers_) return {};
  report::TimersEvent event =
      timers_event(*timers_, phases, static_cast<double>(iterations), *groups_.world);
  event.iteration = iteration;
  if (reporter_) reporter_->on(event);
  return event;
}

}  // namespace trireme::train
