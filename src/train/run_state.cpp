// The state of a run, its spikes, and when it stops.
#include "train/run_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <numeric>
#include <sstream>
#include <vector>

#include "core/error.hpp"
#include "core/system/process.hpp"

namespace trireme::train {

// ---- train.spike

namespace {

/// "loss 9.1 is 7.2 standard deviations above the mean 3.2 of 128 iterations", or nothing.
std::optional<std::string> exceeds(const char* name, double value,
                                   const std::vector<double>& before, double above) {
  const auto count = static_cast<double>(before.size());
  const double mean = std::accumulate(before.begin(), before.end(), 0.0) / count;
  double squares = 0.0;
  for (const double each : before) squares += (each - mean) * (each - mean);
  const double deviation = std::sqrt(squares / count);
  if (!(value > mean + above * deviation)) return std::nullopt;
  return fmt::format(
      "{} {:.6g} is {:.3g} standard deviations above the mean {:.6g} of {} iterations", name, value,
      (value - mean) / deviation, mean, before.size());
}

}  // namespace

void SpikeHistory::add(double loss, double norm, std::int64_t window) {
  for (auto* values : {&losses, &norms}) {
    values->push_back(values == &losses ? loss : norm);
    const auto extra = std::max<std::int64_t>(std::ssize(*values) - window, 0);
    values->erase(values->begin(), values->begin() + extra);
  }
}

std::string SpikeHistory::text() const {
  std::string text = fmt::format("{} {}", skipped, losses.size());
  for (const auto* values : {&losses, &norms})
    for (const double value : *values) text += fmt::format(" {}", value);  // round trips exactly
  return text;
}

SpikeHistory SpikeHistory::from(const std::string& text) {
  std::istringstream words(text);
  SpikeHistory history;
  std::size_t count = 0;
  words >> history.skipped >> count;
  if (count > text.size()) words.setstate(std::ios::failbit);
  for (auto* values : {&history.losses, &history.norms}) {
    values->resize(words ? count : 0);
    for (double& value : *values) words >> value;
  }
  if (!words) throw DataError("'{}' is no history of train.spike", text);
  return history;
}

std::optional<std::string> find_spike(const deck::Spike& rule, const SpikeHistory& history,
                                      double loss, double norm) {
  if (!rule.above || std::ssize(history.losses) < *rule.window || history.skipped >= *rule.limit)
    return std::nullopt;
  if (auto problem = exceeds("loss", loss, history.losses, *rule.above)) return problem;
  return exceeds("gradient norm", norm, history.norms, *rule.above);
}

// ---- the state

checkpoint::Attributes RunState::attributes() const {
  checkpoint::Attributes attributes = {{"iteration", iteration},
                                       {"consumed_samples", consumed_samples},
                                       {"applied_iterations", applied_iterations},
                                       {"applied_samples", applied_samples},
                                       {"skipped", skipped},
                                       {"nan", nan},
                                       {"bad_iterations", bad_iterations},
                                       {"loss_scale", loss_scale.scale},
                                       {"loss_scale_good_iterations", loss_scale.good_iterations},
                                       {"loss_scale_hysteresis_left", loss_scale.hysteresis_left},
                                       {"passed_samples", passed_samples},
                                       {"passed_through", passed_through}};
  if (!train_documents.empty()) attributes["train_documents"] = train_documents;
  if (!train_tokens.empty()) attributes["train_tokens"] = train_tokens;
  if (!tokenizer.empty()) attributes["tokenizer"] = tokenizer;
  if (abandoned > 0) attributes["abandoned"] = abandoned;
  if (spikes != SpikeHistory()) attributes["spikes"] = spikes.text();
  return attributes;
}

namespace {

/// Checkpoints from before there was a scaler have its scale alone.
optim::LossScaleState loss_scale_of(const checkpoint::Header& header) {
  optim::LossScaleState state{.scale = header.get<double>("loss_scale")};
  if (header.attributes.contains("loss_scale_hysteresis_left")) {
    state.good_iterations = header.get<std::int64_t>("loss_scale_good_iterations");
    state.hysteresis_left = header.get<std::int64_t>("loss_scale_hysteresis_left");
  }
  return state;
}

}  // namespace

RunState RunState::from(const checkpoint::Header& header) {
  const auto number = [&](const char* name) { return header.get<std::int64_t>(name); };
  // Checkpoints from before there was train.skip have passed over nothing, and so on.
  const auto number_or_zero = [&](const char* name) {
    return header.attributes.contains(name) ? number(name) : 0;
  };
  // Neither imported models nor checkpoints from before there was the attribute know of documents.
  const auto text_or_empty = [&](const char* name) {
    return header.attributes.contains(name) ? header.get<std::string>(name) : std::string();
  };
  return {.iteration = number("iteration"),
          .consumed_samples = number("consumed_samples"),
          .applied_iterations = number("applied_iterations"),
          .applied_samples = number("applied_samples"),
          .skipped = number("skipped"),
          .nan = number("nan"),
          .bad_iterations = number_or_zero("bad_iterations"),
          .loss_scale = loss_scale_of(header),
          .passed_samples = number_or_zero("passed_samples"),
          .passed_through = number_or_zero("passed_through"),
          .spikes = header.attributes.contains("spikes")
                        ? SpikeHistory::from(header.get<std::string>("spikes"))
                        : SpikeHistory(),
          .abandoned = number_or_zero("abandoned"),
          .train_documents = text_or_empty("train_documents"),
          .train_tokens = text_or_empty("train_tokens"),
          .tokenizer = text_or_empty("tokenizer")};
}

deck::Progress before_last_iteration(const deck::Batch& batch, const deck::Progress& now) {
  if (now.iteration == 0) return now;
  const deck::BatchSizes sizes(batch);
  const deck::Progress before = sizes.advance({}, now.iteration - 1);
  if (sizes.advance(before, 1) == now) return before;
  return {now.iteration - 1, now.samples - batch.global};
}

std::optional<deck::IterationRange> data_to_skip(const deck::Deck& deck, const RunState& state) {
  const std::int64_t next = state.iteration + 1;
  for (const auto& [first, last] : deck.train.skip)
    if (first <= next && next <= last && last > state.passed_through)
      return deck::IterationRange{std::max(next, state.passed_through + 1), last};
  return std::nullopt;
}

std::int64_t skip_data(const deck::Deck& deck, const deck::IterationRange& range, RunState& state) {
  const deck::Progress here = state.progress();
  const deck::Progress there =
      deck::BatchSizes(deck.batch).advance(here, range.last - range.first + 1);
  state.passed_samples += there.samples - here.samples;
  state.passed_through = range.last;
  return there.samples - here.samples;
}

std::int64_t samples_to_skip(const deck::Deck& deck, RunState state, std::int64_t last_iteration) {
  const deck::BatchSizes batches(deck.batch);
  std::int64_t samples = 0;
  for (const auto& [first, last] : deck.train.skip) {
    if (first > last_iteration) break;
    const std::int64_t iterations = std::max<std::int64_t>(first - 1 - state.iteration, 0);
    const deck::Progress before = batches.advance(state.progress(), iterations);
    state.iteration = before.iteration;
    state.consumed_samples = before.samples;
    if (const auto range = data_to_skip(deck, state)) samples += skip_data(deck, *range, state);
  }
  return samples;
}

std::int64_t samples_needed(const deck::Deck& deck, const RunState& state) {
  const deck::Progress end = deck::end_of_run(deck, state.progress());
  return end.samples + state.passed_samples + samples_to_skip(deck, state, end.iteration);
}

// ---- stopping

void StepLimit::note(double seconds, std::int64_t samples) {
  constexpr std::int64_t kFirst = 2;
  if (++count_ <= kFirst) return;
  if (seconds_per_sample_.size() == kRemembered) seconds_per_sample_.pop_front();
  seconds_per_sample_.push_back(seconds / static_cast<double>(samples));
}

std::optional<double> StepLimit::seconds(std::int64_t samples) const {
  constexpr std::size_t kNeeded = 3;
  constexpr double kFactor = 5.0, kMinimum = 10.0;
  if (seconds_per_sample_.size() < kNeeded) return std::nullopt;
  std::vector<double> sorted(seconds_per_sample_.begin(), seconds_per_sample_.end());
  const auto middle = sorted.begin() + std::ssize(sorted) / 2;
  std::nth_element(sorted.begin(), middle, sorted.end());
  return std::max(kMinimum, kFactor * *middle * static_cast<double>(samples));
}

StopConditions::StopConditions(const deck::Deck& deck, const deck::BatchSizes& batches,
                               comm::Communicator& world, const Stopwatch& since_start,
                               std::optional<double> time_limit, std::int64_t parameters)
    : deck_(deck),
      batches_(batches),
      world_(world),
      since_start_(since_start),
      time_limit_(time_limit),
      // Of fp32 weights and moments, on a disk of 500 MB/s.
      save_(12.0 * static_cast<double>(parameters) / 500e6) {}

bool StopConditions::sees_kill_switch() const {
  // Rank 0 alone looks: on a shared file system the others might see another answer.
  std::error_code unreadable;  // what cannot be looked at does not stop the run
  return world_.rank() == 0 && deck_.train.kill_switch &&
         std::filesystem::exists(*deck_.train.kill_switch, unreadable);
}

StopReason StopConditions::before_start() const {
  const bool kill = world_.all_reduce(sees_kill_switch(), comm::Reduce::max) > 0.0;
  return kill ? StopReason::kill_switch : StopReason::none;
}

bool StopConditions::signalled() const {
  return world_.all_reduce(stop_signal() != 0, comm::Reduce::max) > 0.0;
}

double StopConditions::next_iteration_seconds(const deck::Progress& before,
                                              const deck::Progress& now,
                                              const deck::Progress& end) const {
  const deck::Progress next = batches_.advance(now, 1);
  const auto is_due = [&](const std::optional<deck::Length>& every) {
    return (every && deck::reaches(*every, now, next)) ||
           (deck_.evaluate.at_end && next.iteration == end.iteration);
  };
  std::int64_t samples = next.samples - now.samples;
  // A batch of an evaluation is a forward pass, a third of a step: a step's time for each covers
  // the validation and the test split.
  if (is_due(deck_.evaluate.every)) samples += deck_.evaluate.iterations * deck_.batch.global;
  // The first step, in which algorithms are chosen, would be too long for the many batches of a
  // task: half of the latest step's time for each leaves room.
  std::int64_t task_samples = 0;
  for (const auto& [every, of_task] : tasks_)
    if (is_due(every)) task_samples += of_task;
  return (longest_step_ * static_cast<double>(samples) +
          0.5 * latest_step_ * static_cast<double>(task_samples)) /
         static_cast<double>(now.samples - before.samples);
}

StopReason StopConditions::after_step(const deck::Progress& before, const deck::Progress& now,
                                      const deck::Progress& end, ExitCode data) const {
  const double elapsed = since_start_.seconds();
  const double needed = elapsed + next_iteration_seconds(before, now, end) + save_;
  const bool time_limit = time_limit_ && needed >= *time_limit_;
  const bool exit_duration =
      deck_.train.exit_duration && elapsed >= deck::in_seconds(*deck_.train.exit_duration);
  // What any rank saw holds for all.
  double seen[] = {stop_signal() != 0 ? 1.0 : 0.0,   sees_kill_switch() ? 1.0 : 0.0,
                   exit_duration ? 1.0 : 0.0,        time_limit ? 1.0 : 0.0,
                   data == ExitCode::io ? 1.0 : 0.0, data == ExitCode::data ? 1.0 : 0.0};
  world_.all_reduce(seen, std::size(seen), DType::f64, comm::Reduce::max);
  if (now.iteration == end.iteration) return StopReason::none;
  if (seen[4] > 0.0) return StopReason::unreadable_data;
  if (seen[5] > 0.0) return StopReason::bad_data;
  if (seen[0] > 0.0) return StopReason::signal;
  if (seen[1] > 0.0) return StopReason::kill_switch;
  if (seen[2] > 0.0) return StopReason::exit_duration;
  if (seen[3] > 0.0) return StopReason::time_limit;
  const auto& interval = deck_.train.exit_interval;
  if (interval && deck::reaches(*interval, before, now)) return StopReason::exit_interval;
  return StopReason::none;
}

}  // namespace trireme::train
