// The tasks on texts: what a model scores, and what the scores say. trireme-evaluate and the
// evaluations of a training run make them alike.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "data/dataset.hpp"
#include "evaluate/scores.hpp"
#include "tokenizer/tokenizer.hpp"

namespace trireme::evaluate {

/// A task on a file.
struct TaskSpec {
  std::string name;  ///< one of task_names()
  std::string file;
  std::int64_t overlap = 32;  ///< wikitext: tokens from one window to the next
  /// The first windows, texts or questions alone.
  std::int64_t limit = std::numeric_limits<std::int64_t>::max();
};

/// perplexity, wikitext, lambada, strict-lambada, hellaswag, piqa, arc, winogrande, blimp, choices
/// and targets.
const std::vector<std::string_view>& task_names();

/// One number of a result.
struct Metric {
  std::string name;
  std::variant<std::int64_t, double> value;
};

/// Summed over all ranks.
struct SummedLoss {
  double loss = 0.0;    ///< negative log-likelihood of the labels in nats
  double tokens = 0.0;  ///< labels
};

/// A task with its file tokenized.
class Task {
 public:
  virtual ~Task() = default;

  /// What the model scores, each sample once.
  virtual const data::Dataset& dataset() const = 0;
  /// New scores, which the forward passes over dataset() fill; null: the loss alone is needed.
  virtual std::unique_ptr<ClozeScores> scores() const { return nullptr; }
  /// The numbers that matter most first. `scores` are those of scores(), combined.
  virtual std::vector<Metric> result(const SummedLoss& loss, const ClozeScores* scores) const = 0;
};

/// Reads the file of `spec` for a model of context length `sequence`. Throws UsageError for an
/// overlap outside 1 .. sequence, IoError, and DataError that names file and line.
std::unique_ptr<const Task> make_task(const TaskSpec& spec, const tokenizer::Tokenizer& tokenizer,
                                      std::int64_t sequence);

}  // namespace trireme::evaluate
