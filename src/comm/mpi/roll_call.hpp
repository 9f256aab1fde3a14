// Which ranks keep the others waiting.
#pragma once

#include <mpi.h>

#include <condition_variable>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/watchdog.hpp"

namespace trireme::comm {

/// Asks ranks what they wait for. On every rank a thread of its own answers, whatever the program's
/// threads are stuck in: who is silent is stopped, or cannot be reached.
class RollCall {
 public:
  /// `hosts` are those of the world's ranks; `awaited` gives the ranks of which this process waits
  /// for some, or nothing. Collective over MPI_COMM_WORLD.
  RollCall(std::vector<std::string> hosts, std::function<std::optional<Ranks>()> awaited);
  /// Collective, unless an exception is on its way.
  ~RollCall();
  RollCall(const RollCall&) = delete;
  RollCall& operator=(const RollCall&) = delete;

  /// Who keeps `ranks` waiting, in words: those that do not answer, else those that wait for
  /// nobody. When all of them wait, asks whom they wait for, and so on. "" when this process cannot
  /// even ask itself. Takes at most some seconds; called by one thread at a time.
  std::string take(const Ranks& ranks);

 private:
  /// What a rank says of itself, as bytes of a message.
  struct Answer {
    int waits;  ///< 0 while it waits for nobody
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
  /// "rank 1 on node0, rank 3 on node1 and 2 more"
  std::string names(const Ranks& ranks) const;

  const std::vector<std::string> hosts_;
  const std::function<std::optional<Ranks>()> awaited_;
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
