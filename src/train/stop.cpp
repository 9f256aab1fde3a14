#include "train/stop.hpp"

#include <filesystem>
#include <iterator>
#include <vector>

#include "core/system/process.hpp"

namespace trireme::train {

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
  const auto& every = deck_.evaluate.every;
  const bool evaluates = (every && deck::reaches(*every, now, next)) ||
                         (deck_.evaluate.at_end && next.iteration == end.iteration);
  // A batch of an evaluation is a forward pass, a third of a step: a step's time for each covers
  // the validation and the test split.
  const std::int64_t samples =
      next.samples - now.samples + (evaluates ? deck_.evaluate.iterations * deck_.batch.global : 0);
  return longest_step_ * static_cast<double>(samples) /
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
