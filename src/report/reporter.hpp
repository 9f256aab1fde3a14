// What a run reports while it trains: events to metrics.jsonl, TensorBoard and the console, and to
// the commands of the deck's hooks.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/clock.hpp"
#include "deck/deck.hpp"
#include "report/metrics.hpp"
#include "report/run_files.hpp"

namespace trireme::report {

// Commands of the deck (hooks) that run while training continues: in a child process with a time
// limit.

/// Runs the deck's hooks on rank 0, one at a time, in the order of their events, with `sh -c` in
/// the program's working folder; what they print goes to hooks.log in the run folder. Environment:
/// TRIREME_EVENT (checkpoint, stop or fault), TRIREME_RUN (the run folder), TRIREME_ITERATION, and
/// as far as they apply TRIREME_PATH (the checkpoint), TRIREME_REASON and TRIREME_EXIT_CODE. The
/// launcher's variables are removed: a program that a hook starts is no rank of this run.
class Hooks {
 public:
  /// `folder` is the run folder. With hooks.fault starts a process that outlives this one: it runs
  /// the hook if this process ends without end(), by whatever signal.
  Hooks(const deck::Hooks& commands, std::filesystem::path folder, double seconds_at_end = 30.0);
  /// Waits at most `seconds_at_end` for hooks that run or wait. What then runs continues without
  /// this process, as does hooks.stop, which no longer waits for its turn; a warning names the
  /// checkpoints whose hooks did not run.
  ~Hooks();
  Hooks(const Hooks&) = delete;
  Hooks& operator=(const Hooks&) = delete;

  /// A checkpoint was written: hooks.checkpoint runs, if the file is there when its turn comes.
  void checkpoint(std::int64_t iteration, const std::string& path);
  /// The run stopped: hooks.stop runs, and hooks.fault will not.
  void stop(std::int64_t iteration, const std::string& reason, int exit_code);
  /// The run ends by an error: hooks.fault runs.
  void fault(const std::string& reason, int exit_code);
  /// The newest iteration, which a fault names.
  void note(std::int64_t iteration);

  /// Starts the next hook if none runs. Returns what went wrong since the last call: a message for
  /// each hook that failed, and one for checkpoints that were deleted before their hooks ran.
  std::vector<std::string> poll();

 private:
  struct Call {
    std::string event, command;
    std::map<std::string, std::string> environment;

    /// Whether it is about a checkpoint that is gone.
    bool lacks_file() const;
  };

  void add(const std::string& event, const std::optional<std::string>& command,
           std::map<std::string, std::string> environment);
  /// Runs `call`, which becomes the one that runs.
  void start(Call call);
  /// Says of the checkpoints in `calls` that hooks.checkpoint did not run, and why.
  void leave_out(const std::deque<Call>& calls, const char* reason);
  /// Starts `script` with `environment` added to this process's; null `input` for no input.
  pid_t spawn(const std::string& script, const std::map<std::string, std::string>& environment,
              int input) const;
  /// Tells the process that waits for a fault.
  void tell_guard(const std::string& line);

  deck::Hooks commands_;
  std::filesystem::path folder_;
  double seconds_at_end_;
  std::deque<Call> waiting_;
  std::optional<Call> running_;
  pid_t child_ = 0;
  Stopwatch since_started_;  ///< of the one that runs
  int guard_ = -1;           ///< the pipe to the process that waits for a fault
  std::vector<std::string> failures_;
};

// Where a run reports its events: metrics.jsonl, TensorBoard, and the console (Megatron-LM's log
// lines, on standard output and in console.log).

/// Megatron-LM's training line, byte for byte, with its optional fields for norms, followed by
/// tokens per second, TFLOP/s, MFU ("-" when the device's peak is unknown) and the time left
/// until the end of `run`.
std::string training_line(const TrainEvent& event, const RunLength& run);

/// The same for people at a terminal, in less than 100 columns: iteration, loss, gradient norm,
/// learning rate, time, speed, time left, and what was skipped or not finite.
std::string short_training_line(const TrainEvent& event, const RunLength& run);

/// Megatron-LM's validation line between its two rules of dashes: three lines. At the end of a run
/// it names the split.
std::string validation_lines(const EvalEvent& event);
/// " task lambada at iteration 100 | accuracy: 4.518000E-01 | ... |".
std::string task_line(const TaskEvent& event);

/// Megatron-LM's list of timers: the smallest and the largest time over ranks of each.
std::string timers_lines(const TimersEvent& event);

/// Megatron-LM's line about memory for each of the event's ranks, numbers printed as Python prints
/// them, and one with the plan and the memory of the rank with the highest peak.
std::string memory_lines(const MemoryEvent& event);

/// The use of the run's GPUs in one line: the range of utilisation, the highest memory and
/// temperature, the sum of power.
std::string gpu_line(const GpuEvent& event);

/// Megatron-LM's "[before the start of training step] datetime: 2023-06-14 16:08:12 ", with the
/// space at its end; `time` in seconds since 1970, shown in local time.
std::string datetime_line(std::string_view what, double time);

/// Program, hosts and layout, and the formula for FLOPs per token: two lines.
std::string start_lines(const StartEvent& event);

/// One line each for the other events.
std::string skip_line(const SkipEvent& event);
std::string rewind_line(const RewindEvent& event);
std::string checkpoint_line(const CheckpointEvent& event);
std::string trace_line(const TraceEvent& event);
std::string warning_line(const WarningEvent& event);
std::string stop_line(const StopEvent& event);

/// Prints to standard output and to console.log, flushed line by line.
class Console {
 public:
  /// Opens the file at `path`. Throws IoError.
  /// `quiet`: nothing goes to standard output.
  Console(const std::filesystem::path& path, OutputFile::Mode mode, bool quiet = false)
      : log_(path, mode), quiet_(quiet) {}

  /// Prints `text`, which may have several lines, and a newline. Throws IoError when the file
  /// cannot be written; a closed standard output is no error.
  void print(std::string_view text) { print(text, text); }
  /// The same, with another text on standard output.
  void print(std::string_view text, std::string_view on_standard_output);
  /// Writes what earlier calls could not. Throws IoError.
  void flush() { log_.flush(); }
  /// Bytes of the file that are in memory alone.
  std::size_t unwritten() const { return log_.unwritten(); }

 private:
  OutputFile log_;
  bool quiet_;
};

/// Options of a Reporter.
struct ReporterOptions {
  std::filesystem::path folder = {};  ///< the run folder; created when absent
  RunLength run = {};                 ///< for the console and the time left
  /// Iteration of the checkpoint that the run continues from; absent in a fresh run.
  std::optional<std::int64_t> restart = {};
  bool tensorboard = true;                                               ///< write event files
  deck::TensorboardDialect dialect = deck::TensorboardDialect::trireme;  ///< their tags
  std::int64_t flush_every = 100;              ///< scalars between two flushes of the event file
  bool short_lines = false;                    ///< training lines on standard output are short
  bool quiet = false;                          ///< standard output gets nothing
  std::optional<std::string> prometheus = {};  ///< log.prometheus
  deck::Hooks hooks = {};
  std::string name = {};  ///< of the run
};

/// Writes the run's events. Used by rank 0 alone. A fresh run truncates metrics.jsonl and
/// console.log; a restarted one truncates metrics.jsonl after its checkpoint's iteration and
/// appends to both. Each run has its own event file. Between its start and its end a file that
/// cannot be written is a warning on standard error: what it lacks is written with a later event.
/// Otherwise, and when 64 MiB wait to be written, every member throws IoError.
class Reporter {
 public:
  explicit Reporter(const ReporterOptions& options);

  void on(const StartEvent& event);
  void on(const TrainEvent& event);
  void on(const SkipEvent& event);
  /// Also truncates metrics.jsonl after the checkpoint's iteration, as a restart does.
  void on(RewindEvent event);
  void on(const EvalEvent& event);
  void on(const TaskEvent& event);
  void on(const TimersEvent& event);
  void on(const CheckpointEvent& event);
  void on(const MemoryEvent& event);
  void on(const GpuEvent& event);
  void on(const TraceEvent& event);
  void on(const WarningEvent& event);
  void on(const StopEvent& event);  ///< also flushes all files
  /// The run ends by an error, which is no event of metrics.jsonl: for hooks.fault.
  void fault(const std::string& message, int exit_code);

  /// Text for people that is not an event: tables at start-up, how to continue.
  void print(std::string_view text);

 private:
  /// Sends an event to every view; `text` is what the console says of it.
  template <typename Event>
  void emit(const Event& event, const std::string& text);
  template <typename Event>
  void emit(const Event& event, const std::string& text, const std::string& on_standard_output);
  /// Calls `write`, after which a run in training goes on whether its files take it or not.
  template <typename Write>
  void keep_going(const Write& write);
  /// Starts hooks that wait, and warns of those that failed.
  void poll_hooks(std::int64_t iteration);

  std::filesystem::path folder_;
  RunLength run_;
  OutputFile metrics_;
  Console console_;
  std::unique_ptr<Curves> curves_;
  std::optional<EventFile> tensorboard_;
  /// Whether TensorBoard may be told that a run resumes: it then drops the points of all tags from
  /// that step on, those over samples and tokens too; and some of its readers drop nothing at the
  /// first such record that they meet.
  bool over_iterations_alone_;
  bool short_lines_;
  bool trains_ = false;           ///< after the start event
  bool warned_of_files_ = false;  ///< that cannot be written
  std::optional<PrometheusFile> prometheus_;
  bool prometheus_failed_ = false;
  Hooks hooks_;
};

}  // namespace trireme::report
