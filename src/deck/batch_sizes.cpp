#include "deck/batch_sizes.hpp"

#include <algorithm>
#include <limits>

namespace trireme::deck {
namespace {

std::int64_t divide_up(std::int64_t number, std::int64_t by) { return (number + by - 1) / by; }

/// What `every` counts: iterations or samples.
std::int64_t counted(const Length& every, const Progress& progress) {
  return every.unit == Unit::iterations ? progress.iteration : progress.samples;
}

}  // namespace

BatchSizes::BatchSizes(const Batch& batch)
    : largest_(std::max<std::int64_t>(batch.global, 1)), start_(largest_) {
  const auto& [start, step, samples] = batch.rampup;
  if (!start || !step || !samples || *start < 1 || *step < 1 || *samples < 1) return;
  if (*start >= largest_ || (largest_ - *start) % *step != 0) return;
  start_ = *start;
  step_ = *step;
  steps_ = (largest_ - start_) / step_;
  ramp_ = *samples;
  samples_per_step_ = static_cast<double>(ramp_) / static_cast<double>(steps_);
}

std::int64_t BatchSizes::step_at(std::int64_t samples) const {
  if (samples > ramp_) return steps_;
  const double steps = static_cast<double>(samples) / samples_per_step_;
  return std::min(static_cast<std::int64_t>(steps), steps_);
}

std::int64_t BatchSizes::at(std::int64_t samples) const {
  return start_ + step_at(samples) * step_;
}

BatchSizes::Stretch BatchSizes::stretch(std::int64_t samples) const {
  const std::int64_t batch = at(samples), step = step_at(samples);
  if (step == steps_) return {batch, std::numeric_limits<std::int64_t>::max()};
  // The first count of samples with the next size: a product may miss it by one.
  auto end = static_cast<std::int64_t>(static_cast<double>(step + 1) * samples_per_step_);
  while (step_at(end) > step) --end;
  while (step_at(end) <= step) ++end;
  return {batch, divide_up(end - samples, batch)};
}

template <typename Most>
Progress BatchSizes::walk(Progress now, Most most) const {
  while (true) {
    const auto [batch, iterations] = stretch(now.samples);
    const std::int64_t wanted = std::max<std::int64_t>(most(now, batch), 0);
    const std::int64_t taken = std::min(wanted, iterations);
    now.iteration += taken;
    now.samples += taken * batch;
    if (taken == wanted) return now;
  }
}

Progress BatchSizes::advance(const Progress& from, std::int64_t iterations) const {
  const std::int64_t last = from.iteration + iterations;
  return walk(from, [&](const Progress& now, std::int64_t) { return last - now.iteration; });
}

Progress BatchSizes::reach(const Progress& from, std::int64_t samples) const {
  return walk(from, [&](const Progress& now, std::int64_t batch) {
    return divide_up(samples - now.samples, batch);
  });
}

Progress BatchSizes::fill(const Progress& from, std::int64_t samples) const {
  return walk(from, [&](const Progress& now, std::int64_t batch) {
    return (samples - now.samples) / batch;
  });
}

std::int64_t BatchSizes::times_reached(const Length& every, const Progress& now) const {
  const auto interval = static_cast<std::int64_t>(every.value);
  if (every.unit == Unit::iterations) return now.iteration / interval;
  std::int64_t times = 0;
  for (std::int64_t first = 0; first < now.samples;) {
    const auto [batch, iterations] = stretch(first);
    const std::int64_t taken = std::min(iterations, divide_up(now.samples - first, batch));
    const std::int64_t last = std::min(first + taken * batch, now.samples);
    // A batch larger than the interval reaches a multiple in each iteration, but counts once.
    times += batch > interval ? (last - first) / batch : last / interval - first / interval;
    first = last;
  }
  return times;
}

bool reaches(const Length& every, const Progress& before, const Progress& now) {
  const auto interval = static_cast<std::int64_t>(every.value);
  return counted(every, now) / interval > counted(every, before) / interval;
}

Progress end_of_run(const Deck& deck, const Progress& from) {
  const BatchSizes sizes(deck.batch);
  if (deck.train.samples) return sizes.fill(from, *deck.train.samples);
  return sizes.advance(from, deck.train.iterations.value_or(0) - from.iteration);
}

}  // namespace trireme::deck
