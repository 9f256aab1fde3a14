#include "train/measurements.hpp"

#include <algorithm>
#include <iterator>
#include <limits>

#include "core/system/memory.hpp"

namespace trireme::train {
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

}  // namespace trireme::train
