#include "deck/deck.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.hpp"

namespace trireme::deck {

std::int64_t total_iterations(const Deck& deck) { return end_of_run(deck).iteration; }

std::int64_t total_samples(const Deck& deck) { return end_of_run(deck).samples; }

std::vector<double> effective_split(const Deck& deck) {
  std::vector<double> split = deck.data.split;
  if (deck.data.valid && split.size() > 1) split[1] = 0;
  if (deck.data.test && split.size() > 2) split[2] = 0;
  return split;
}

bool has_valid_part(const Deck& deck) {
  return deck.data.valid || (deck.data.split.size() > 1 && deck.data.split[1] > 0);
}

bool has_test_part(const Deck& deck) {
  return deck.data.test || (deck.data.split.size() > 2 && deck.data.split[2] > 0);
}

std::int64_t in_samples(const Length& length, const Deck& deck) {
  switch (length.unit) {
    case Unit::samples:
      return static_cast<std::int64_t>(length.value);
    case Unit::iterations:
      return BatchSizes(deck.batch).advance({}, static_cast<std::int64_t>(length.value)).samples;
    case Unit::fraction: {
      const auto decay = static_cast<double>(in_samples(deck.schedule.decay, deck));
      return static_cast<std::int64_t>(length.value * decay);
    }
    case Unit::seconds:
    case Unit::minutes:
    case Unit::hours:
      break;
  }
  throw InternalError("{} {} is a time, not a number of samples", length.value,
                      name_of(length.unit));
}

std::int64_t in_iterations(const Length& length, const Deck& deck) {
  if (length.unit == Unit::iterations) return static_cast<std::int64_t>(length.value);
  return BatchSizes(deck.batch).reach({}, in_samples(length, deck)).iteration;
}

double in_seconds(const Length& length) {
  TRIREME_CHECK(
      length.unit == Unit::seconds || length.unit == Unit::minutes || length.unit == Unit::hours,
      "{} {} is not a time", length.value, name_of(length.unit));
  const double seconds_each = length.unit == Unit::hours     ? 3600
                              : length.unit == Unit::minutes ? 60
                                                             : 1;
  return length.value * seconds_each;
}

bool is_dynamic(const Precision& precision) {
  return precision.compute == Compute::fp16 && !precision.loss_scale.value;
}

namespace {

/// The forward FLOPs of the head over those of a block: the logits' GEMM over four matrices of
/// attention, two of the MLP, and causal attention. Where the deck leaves the vocabulary to its
/// tokenizer, GPT-2's counts.
double head_in_blocks(const Model& model) {
  const double h = static_cast<double>(model.hidden), f = static_cast<double>(model.ffn);
  const double block = 8 * h * h + 4 * h * f + 2 * static_cast<double>(model.sequence) * h;
  return 2 * h * static_cast<double>(model.vocab.value_or(50257)) / block;
}

}  // namespace

std::vector<std::int64_t> layers_per_stage(const Deck& deck) {
  if (deck.parallel.partition) return *deck.parallel.partition;
  const std::int64_t stages = deck.parallel.pipeline, layers = deck.model.layers;
  std::vector<std::int64_t> partition(stages, layers / stages);
  if (layers % stages == 0) return partition;
  // One block after the other to the stage with the least work, which gives the smallest maximum.
  // Of equal stages the last: earlier ones keep more micro-batches.
  std::vector<double> work(stages, 0.0);
  work.back() = head_in_blocks(deck.model);
  std::ranges::fill(partition, 0);
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    std::size_t least = work.size() - 1;
    for (std::size_t stage = work.size() - 1; stage-- > 0;)
      if (work[stage] < work[least] - 1e-9) least = stage;
    work[least] += 1;
    ++partition[least];
  }
  return partition;
}

namespace {

std::int64_t divide_up(std::int64_t number, std::int64_t by) { return (number + by - 1) / by; }

/// What `every` counts: iterations or samples.
std::int64_t units_done(const Length& every, const Progress& progress) {
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

BatchSizes::SizeRange BatchSizes::size_range(std::int64_t samples) const {
  const std::int64_t batch = at(samples), step = step_at(samples);
  if (step == steps_) return {batch, std::numeric_limits<std::int64_t>::max()};
  // The first count of samples with the next size: a product may miss it by one.
  auto end = static_cast<std::int64_t>(static_cast<double>(step + 1) * samples_per_step_);
  while (step_at(end) > step) --end;
  while (step_at(end) <= step) ++end;
  return {batch, divide_up(end - samples, batch)};
}

template <typename Limit>
Progress BatchSizes::walk(Progress now, Limit limit) const {
  while (true) {
    const auto [batch, iterations] = size_range(now.samples);
    const std::int64_t wanted = std::max<std::int64_t>(limit(now, batch), 0);
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
    const auto [batch, iterations] = size_range(first);
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
  return units_done(every, now) / interval > units_done(every, before) / interval;
}

Progress end_of_run(const Deck& deck, const Progress& from) {
  const BatchSizes sizes(deck.batch);
  if (deck.train.samples) return sizes.fill(from, *deck.train.samples);
  return sizes.advance(from, deck.train.iterations.value_or(0) - from.iteration);
}

}  // namespace trireme::deck
