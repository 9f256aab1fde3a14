// The curves of a run: its training lines and evaluations, from metrics.jsonl or a console log.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "report/metrics.hpp"
#include "report/runs/megatron_log.hpp"

namespace trireme::report {

/// An evaluation of the validation split.
struct EvalRow {
  std::int64_t iteration = 0;
  std::optional<double> loss, samples, tokens;
};

/// Everything about a run that can be compared with other runs.
struct RunHistory {
  std::string name;  ///< the path, as the user gave it
  StartEvent start;  ///< the newest start; without a program where a log was read
  /// By ascending iteration. Iterations that a restart repeats appear once, with the newer values.
  std::vector<TrainRow> train;
  std::vector<EvalRow> validation;
  double memory = 0;           ///< bytes on the rank with the highest use; 0 when unknown
  std::filesystem::path deck;  ///< deck.yaml of a run folder; empty for other files
};

/// `rows` without those that a later restart repeats.
std::vector<TrainRow> without_repeated(const std::vector<TrainRow>& rows);

/// Reads a run folder, its metrics.jsonl or a console log of this program or Megatron-LM. Throws
/// IoError when it cannot be read.
RunHistory read_run(const std::filesystem::path& path);

}  // namespace trireme::report
