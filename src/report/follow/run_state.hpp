// What a run's metrics.jsonl says about it, line by line: no files, no clocks.
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

/// A training line; what it does not say, or says to be no number, is absent.
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

/// A run, as far as its lines tell.
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
  double memory = 0;  ///< bytes of the fullest rank: of its GPU, else resident at its peak
  std::vector<GpuUse> gpus;
  std::vector<double> rank_ms;  ///< TimersEvent::rank_ms

  // Since the newest start.
  std::int64_t steps = 0;               ///< iterations that training lines tell of
  std::deque<double> intervals = {};    ///< seconds between training lines, the newest hundred
  double longest_pause = 0;             ///< seconds that an evaluation or a checkpoint took
  std::optional<WarningEvent> warning;  ///< the newest
  std::optional<StopEvent> stop;

  double last_time = 0;                      ///< of the newest line
  std::int64_t unreadable = 0;               ///< lines that are not JSON objects with a kind
  std::map<std::string, int> unknown_kinds;  ///< lines of kinds that this program does not know

  /// Takes the next line of metrics.jsonl; true for a training line.
  bool take(std::string_view line);

  /// Seconds between training lines: the median; before there are two, what the first one's steps
  /// took. Nothing without a step.
  std::optional<double> typical_interval() const;
  /// Seconds that the rest of the run will take at the newest line's speed.
  std::optional<double> seconds_left() const;
};

}  // namespace trireme::report
