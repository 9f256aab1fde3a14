// Diagnoses a stall: which ranks do not take part in a collective.
#pragma once

#include <mpi.h>

#include <condition_variable>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "comm/watchdog.hpp"

namespace trireme::comm {

/// Asks ranks what they wait for. On every rank a separate thread answers, whatever the main thread
/// is blocked in: a rank that does not answer is stopped or cannot be reached.
class StallDiagnostics {
 public:
  /// `hosts` are those of the world's ranks; `watchdog` knows which ranks this process waits for
  /// and whether its work progresses. Collective over MPI_COMM_WORLD.
  StallDiagnostics(std::vector<std::string> hosts, std::shared_ptr<Watchdog> watchdog);
  /// Collective, except during an exception.
  ~StallDiagnostics();
  StallDiagnostics(const StallDiagnostics&) = delete;
  StallDiagnostics& operator=(const StallDiagnostics&) = delete;

  /// Why a wait for `ranks` does not end: names the ranks that do not answer; else, unless one of
  /// them does local work that progresses, those that are in no communication call. When all of
  /// them wait, asks the ranks that they wait for, and so on. The text is "" when this process does
  /// not receive its own answer. Where nothing progresses all ranks write their stacks
  /// (write_stacks()). Takes seconds at most; called by one thread at a time.
  StallDiagnosis diagnose(const Ranks& ranks);
  /// After diagnose(): whether a rank that can be reached has yet to write its stacks. One that
  /// does not answer counts for as long as an answer may take.
  bool awaits_stacks();

 private:
  /// The state of a rank, as bytes of a message.
  struct Answer {
    int waits;  ///< 0 while it is in no communication call
    int works;  ///< 0 while it does no local work that others wait for
    /// Watchdog::progress_due() where `works`, in seconds
    double progress_due;
    char phase[96];  ///< Watchdog::phase(), ends with a zero
    int count;       ///< of `ranks`
    int ranks[64];
  };
  struct Sent {
    Answer answer;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  using Answers = std::map<int, Answer>;

  // Called by the thread, which makes all MPI calls.
  void serve();
  void ask(const Ranks& ranks);
  void ask_for_stacks();
  void answer_questions();
  void report_stacks();
  Answers received_answers();
  Answer own_answer() const;

  /// diagnose() without the stacks.
  StallDiagnosis find_cause(const Ranks& ranks);
  /// The answers of `ranks` within kAnswerTimeout.
  Answers answers_of(const Ranks& ranks);
  /// "rank 1 on node0, rank 3 on node1 answer but are in no communication call"
  std::string describe_idle(const Ranks& ranks, const Answers& answers) const;
  /// "rank 1 on node0, rank 3 on node1 and 2 more"
  std::string names(const Ranks& ranks) const;

  const std::vector<std::string> hosts_;
  const std::shared_ptr<Watchdog> watchdog_;
  MPI_Comm handle_ = MPI_COMM_NULL;
  int rank_ = 0;
  std::list<Sent> sent_;  ///< used by the thread alone
  Ranks stacks_for_;      ///< who asked for this rank's; used by the thread alone
  std::mutex mutex_;      ///< guards what follows
  std::condition_variable wake_, answered_;
  bool stop_ = false;
  Ranks to_ask_;
  bool wants_stacks_ = false;
  Answers answers_;
  std::optional<Watched::Clock::time_point> asked_for_stacks_;
  std::set<int> silent_, stacks_begun_, stacks_written_;  ///< ranks; the first of diagnose()
  std::thread thread_;
};

}  // namespace trireme::comm
