// Where a run reports its events: metrics.jsonl, the console and TensorBoard.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "report/console.hpp"
#include "report/curves.hpp"
#include "report/metrics.hpp"
#include "report/run_files.hpp"

namespace trireme::report {

/// Options of a Reporter.
struct ReporterOptions {
  std::filesystem::path folder = {};  ///< the run folder; created when absent
  RunLength run = {};                 ///< for the console and the time left
  /// Iteration of the checkpoint that the run continues from; absent in a fresh run.
  std::optional<std::int64_t> restart = {};
  bool tensorboard = true;                                               ///< write event files
  deck::TensorboardDialect dialect = deck::TensorboardDialect::trireme;  ///< their tags
  std::int64_t flush_every = 100;  ///< scalars between two flushes of the event file
};

/// Writes the run's events. Used by rank 0 alone. A fresh run truncates metrics.jsonl and
/// console.log; a restarted one truncates metrics.jsonl after its checkpoint's iteration and
/// appends to both. Each run has its own event file. Every member throws IoError when a file cannot
/// be written.
class Reporter {
 public:
  explicit Reporter(const ReporterOptions& options);

  void on(const StartEvent& event);
  void on(const TrainEvent& event);
  void on(const SkipEvent& event);
  void on(const EvalEvent& event);
  void on(const TimersEvent& event);
  void on(const CheckpointEvent& event);
  void on(const MemoryEvent& event);
  void on(const GpuEvent& event);
  void on(const WarningEvent& event);
  void on(const StopEvent& event);  ///< also flushes the event file

  /// Text for people that is not an event: tables at start-up, how to continue.
  void print(std::string_view text) { console_.print(text); }

 private:
  /// Sends an event to every view; `text` is what the console says of it.
  template <typename Event>
  void emit(const Event& event, const std::string& text);

  RunLength run_;
  OutputFile metrics_;
  Console console_;
  std::unique_ptr<Curves> curves_;
  std::optional<EventFile> tensorboard_;
};

}  // namespace trireme::report
