// Which ranks keep the others waiting.
#pragma once

#include <mpi.h>

#include <condition_variable>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/watchdog.hpp"

namespace trireme::comm {

/// Asks ranks what they wait for. On every rank a thread of its own answers, whatever the program's
/// threads are stuck in: who is silent is stopped, or cannot be reached.
class RollCall {
 public:
  /// `hosts` are those of the world's ranks; `watchdog` knows which ranks this process waits for
  /// and whether its work progresses. Collective over MPI_COMM_WORLD.
  RollCall(std::vector<std::string> hosts, std::shared_ptr<Watchdog> watchdog);
  /// Collective, unless an exception is on its way.
  ~RollCall();
  RollCall(const RollCall&) = delete;
  RollCall& operator=(const RollCall&) = delete;

  /// Which ranks keep `ranks` waiting: those that do not answer; else, unless one of them does work
  /// that progresses, those that wait for no other rank. When all of them wait, asks the ranks that
  /// they wait for, and so on. The text is "" when this process does not even answer itself. Takes
  /// some seconds at most; called by one thread at a time.
  StallDiagnosis take(const Ranks& ranks);

 private:
  /// What a rank says of itself, as bytes of a message.
  struct Answer {
    int waits;  ///< 0 while it waits for nobody
    int works;  ///< 0 while it does no work that others wait for
    /// Watchdog::progress_due() where `works`, in seconds
    double progress_due;
    int count;  ///< of the next
    int ranks[64];
  };
  struct Sent {
    Answer answer;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  using Answers = std::map<int, Answer>;

  // Called by the thread, as is all of MPI.
  void serve();
  void ask(const Ranks& ranks);
  void answer_questions();
  Answers received_answers();
  Answer own_answer() const;

  /// The answers of `ranks` that come in time.
  Answers answers_of(const Ranks& ranks);
  /// "rank 1 on node0, rank 3 on node1 answer, but wait for nobody"
  std::string describe_free(const Ranks& ranks, const Answers& answers) const;
  /// "rank 1 on node0, rank 3 on node1 and 2 more"
  std::string names(const Ranks& ranks) const;

  const std::vector<std::string> hosts_;
  const std::shared_ptr<Watchdog> watchdog_;
  MPI_Comm handle_ = MPI_COMM_NULL;
  int rank_ = 0;
  std::list<Sent> sent_;  ///< of the thread
  std::mutex mutex_;      ///< of what follows
  std::condition_variable wake_, answered_;
  bool stop_ = false;
  Ranks to_ask_;
  Answers answers_;
  std::thread thread_;
};

}  // namespace trireme::comm
