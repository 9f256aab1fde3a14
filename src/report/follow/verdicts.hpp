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

/// Whether a process holds the run folder. A lock that is free counts where the run's first host is
/// this one: not every file system tells other hosts of locks.
enum class Lock { held, free, unknown };

/// What Slurm says of the run's job.
struct JobState {
  std::string id;
  std::string state;   ///< "RUNNING", "PENDING", "COMPLETED", ...
  std::string reason;  ///< "Resources", "None", ...
};

/// What the run's own lines do not tell.
struct Facts {
  double now = 0;  ///< seconds since 1970
  Lock lock = Lock::unknown;
  std::optional<JobState> job = {};
};

/// Is the job running? Well: it makes steps, or it has finished (exit code 0), and its newest loss
/// is finite. A run whose lines
/// stay away for five times their usual interval stalls, unless an evaluation or a checkpoint has
/// taken half as long before.
Verdict is_running(const RunState& run, const Facts& facts);

/// Whether nothing more is to come of the run: it has stopped, or died, and its job, if it has one,
/// is over or will not start it again. The facts are older than the last of the run's lines.
bool has_ended(const RunState& run, const Facts& facts);

/// Are the GPUs busy? Well: every GPU computed at least half of the time; or the run uses none.
Verdict are_gpus_busy(const RunState& run);

/// Is there no error in any rank's output?
Verdict has_no_error(const RankOutput& output);

/// Is the effective deck what was asked for? What the asked deck leaves open (`parallel.data` and
/// `run.device` may be `auto`) agrees with any value. The first keys that differ are named.
Verdict is_deck_as_asked(const deck::Deck& effective, deck::Deck asked,
                         const std::string& asked_name);

/// A line for each rank that computes more than a fifth longer than the usual rank of its stage:
/// the others wait for it.
std::vector<std::string> stragglers(const RunState& run);

/// A run and the answers about it.
struct Page {
  std::string folder;
  RunState run;
  double now = 0;
  bool ended = false;  ///< nothing more is to come
  /// Is it running, are the GPUs busy, is there no error, is the deck what was asked?
  std::array<Verdict, 4> verdicts;
  std::vector<std::string> notes;  ///< stragglers, lines that could not be read

  /// Whether none of the answers is bad.
  bool well() const;
};

/// The page as text: progress, figures, GPUs, answers, notes; what is not known is "-". Lines end
/// in newlines. Words of judgement have colours where `colour` says so.
std::string to_text(const Page& page, bool colour);

}  // namespace trireme::report
