// The state of a run by the lines of its metrics.jsonl.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "report/metrics.hpp"

namespace trireme::report {

/// A training line; missing values and those that are not numbers are absent.
struct TrainPoint {
  double time = 0;
  std::int64_t iteration = 0;
  std::optional<std::int64_t> samples, tokens, global_batch;
  std::optional<double> loss, grad_norm, learning_rate, ms, tokens_per_second, tflops, mfu;
};

/// A checkpoint or an evaluation of the validation split.
struct Milestone {
  std::int64_t iteration = 0;
  std::optional<double> loss;                   ///< of an evaluation
  std::optional<std::int64_t> samples, tokens;  ///< consumed, of an evaluation
};

/// The state of a run.
struct RunState {
  /// Of the newest start of the program; `starts` counts them.
  StartEvent start;
  double start_time = 0;
  int starts = 0;

  std::optional<TrainPoint> train;  ///< the newest, also of earlier starts
  std::optional<double> best_loss;
  std::int64_t best_iteration = 0;
  std::int64_t skipped = 0, nan = 0;  ///< iterations
  std::optional<Milestone> evaluation, checkpoint;
  double memory = 0;  ///< bytes on the rank with the highest use: of its GPU, else peak resident
  std::vector<GpuUse> gpus;
  std::vector<double> rank_ms;  ///< TimersEvent::rank_ms

  // Since the newest start.
  std::int64_t steps = 0;               ///< iterations in training lines
  std::deque<double> intervals = {};    ///< seconds between training lines, the newest hundred
  double longest_pause = 0;             ///< seconds that an evaluation or a checkpoint took
  std::optional<WarningEvent> warning;  ///< the newest
  std::optional<StopEvent> stop;

  double last_time = 0;                      ///< of the newest line
  std::int64_t unreadable = 0;               ///< lines that are not JSON objects with a kind
  std::map<std::string, int> unknown_kinds;  ///< lines of kinds that this program does not know

  /// Takes the next line of metrics.jsonl; true for a training line.
  bool take(std::string_view line);

  /// The median of the seconds between training lines; of one line the time of its steps. Empty
  /// without a step.
  std::optional<double> typical_interval() const;
  /// The remaining seconds at the newest line's speed.
  std::optional<double> seconds_left() const;
};

}  // namespace trireme::report
