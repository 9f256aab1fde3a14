// What `trireme-report follow` shows of a run: the answers to four questions, and the page.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "deck/deck.hpp"
#include "report/follow/rank_output.hpp"
#include "report/follow/run_state.hpp"

namespace trireme::report {

enum class Judgement { well, bad, unknown };

/// An answer, and why.
struct Verdict {
  Judgement judgement = Judgement::unknown;
  std::string reason = {};
};

/// Whether a process holds the lock of the run folder. `free` only on the run's first host: not
/// every file system shows locks to other hosts.
enum class Lock { held, free, unknown };

/// Slurm's state of the run's job.
struct JobState {
  std::string id;
  std::string state;   ///< "RUNNING", "PENDING", "COMPLETED", ...
  std::string reason;  ///< "Resources", "None", ...
};

/// Facts that are not in the run's lines.
struct Facts {
  double now = 0;  ///< seconds since 1970
  Lock lock = Lock::unknown;
  std::optional<JobState> job = {};
};

/// Is the run running? Yes: it trains, or it has finished (exit code 0), and its newest loss is
/// finite. A run is stalled when no line comes for five times the usual interval, or for twice the
/// longest evaluation or checkpoint, if that is longer.
Verdict is_running(const RunState& run, const Facts& facts);

/// Whether the run has ended for the follower: it has stopped or died, and its job, if any, has
/// ended or will not be requeued. The facts must be older than the last of the run's lines.
bool has_ended(const RunState& run, const Facts& facts);

/// Are the GPUs busy? Yes: every GPU has a utilisation of 50 % or more; or the run uses none.
Verdict are_gpus_busy(const RunState& run);

/// Is there no error in any rank's output?
Verdict has_no_error(const RankOutput& output);

/// Is the effective deck the requested one? `auto` (parallel.data, run.device) agrees with any
/// value. The first keys that differ are named.
Verdict is_deck_as_asked(const deck::Deck& effective, deck::Deck asked,
                         const std::string& asked_name);

/// A line for each rank that computes more than 20 % longer than the median rank of its stage.
std::vector<std::string> stragglers(const RunState& run);

/// A run and the answers about it.
struct Page {
  std::string folder;
  RunState run;
  double now = 0;
  bool ended = false;  ///< see has_ended()
  /// Is it running, are the GPUs busy, is there no error, is the deck as requested?
  std::array<Verdict, 4> verdicts;
  std::vector<std::string> notes;  ///< stragglers, lines that could not be read

  /// Whether none of the answers is bad.
  bool well() const;
};

/// The page as text: progress, values, GPUs, answers, notes; "-" for unknown values. Lines end in
/// newlines. `colour` colours the answers.
std::string to_text(const Page& page, bool colour);

}  // namespace trireme::report
