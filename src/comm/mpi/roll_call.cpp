#include "comm/mpi/roll_call.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <set>
#include <utility>

#include "comm/mpi/mpi_communicator.hpp"

namespace trireme::comm {
namespace {

enum Tag { kQuestion, kAnswer };

/// How often a rank looks for questions.
constexpr std::chrono::milliseconds kInterval{100};
/// How long an answer may take on a machine that is busy otherwise.
constexpr std::chrono::seconds kPatience{3};
/// As many as there are axes of a layout: any rank can be reached from any other along them.
constexpr int kMostRounds = 3;
/// Who reads the message needs no more names than these.
constexpr std::size_t kMostNames = 8;

}  // namespace

RollCall::RollCall(std::vector<std::string> hosts, std::shared_ptr<Watchdog> watchdog)
    : hosts_(std::move(hosts)), watchdog_(std::move(watchdog)) {
  TRIREME_MPI(MPI_Comm_dup(MPI_COMM_WORLD, &handle_));
  TRIREME_MPI(MPI_Comm_rank(handle_, &rank_));
  thread_ = std::thread([this] { serve(); });
}

RollCall::~RollCall() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
  if (std::uncaught_exceptions() == 0) MPI_Comm_free(&handle_);
}

// ---------------------------------------------------------------------------- the thread

// What MPI says of a message that it could not send is of no use: the answer will be missing.

void RollCall::serve() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    wake_.wait_for(lock, kInterval, [this] { return stop_ || !to_ask_.empty(); });
    const Ranks ranks = std::exchange(to_ask_, {});
    lock.unlock();
    ask(ranks);
    answer_questions();
    Answers received = received_answers();
    lock.lock();
    answers_.merge(received);
    answered_.notify_one();
  }
}

void RollCall::ask(const Ranks& ranks) {
  for (const int rank : ranks) {
    MPI_Request request = MPI_REQUEST_NULL;
    if (MPI_Isend(nullptr, 0, MPI_BYTE, rank, kQuestion, handle_, &request) == MPI_SUCCESS)
      MPI_Request_free(&request);
  }
}

void RollCall::answer_questions() {
  sent_.remove_if([](Sent& sent) {
    int done = 0;
    return MPI_Test(&sent.request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done != 0;
  });
  int found = 0;
  MPI_Status status;
  while (MPI_Iprobe(MPI_ANY_SOURCE, kQuestion, handle_, &found, &status) == MPI_SUCCESS && found) {
    MPI_Recv(nullptr, 0, MPI_BYTE, status.MPI_SOURCE, kQuestion, handle_, MPI_STATUS_IGNORE);
    Sent& sent = sent_.emplace_back(Sent{.answer = own_answer()});
    MPI_Isend(&sent.answer, sizeof(Answer), MPI_BYTE, status.MPI_SOURCE, kAnswer, handle_,
              &sent.request);
  }
}

RollCall::Answers RollCall::received_answers() {
  Answers answers;
  int found = 0;
  MPI_Status status;
  while (MPI_Iprobe(MPI_ANY_SOURCE, kAnswer, handle_, &found, &status) == MPI_SUCCESS && found)
    MPI_Recv(&answers[status.MPI_SOURCE], sizeof(Answer), MPI_BYTE, status.MPI_SOURCE, kAnswer,
             handle_, MPI_STATUS_IGNORE);
  return answers;
}

RollCall::Answer RollCall::own_answer() const {
  const std::optional<Ranks> ranks = watchdog_->awaited();
  const auto due = watchdog_->progress_due();
  Answer answer{.waits = ranks.has_value(), .works = due.has_value()};
  if (due) answer.progress_due = std::chrono::duration<double>(*due).count();
  if (!ranks) return answer;
  answer.count = static_cast<int>(std::min(ranks->size(), std::size(answer.ranks)));
  std::copy_n(ranks->begin(), answer.count, answer.ranks);
  return answer;
}

// ---------------------------------------------------------------------------- the caller

RollCall::Answers RollCall::answers_of(const Ranks& ranks) {
  std::unique_lock lock(mutex_);
  to_ask_ = ranks;
  wake_.notify_one();
  answered_.wait_for(lock, kPatience, [&] {
    return std::all_of(ranks.begin(), ranks.end(),
                       [this](int rank) { return answers_.contains(rank); });
  });
  return answers_;
}

std::string RollCall::names(const Ranks& ranks) const {
  std::string text;
  for (std::size_t i = 0; i < std::min(ranks.size(), kMostNames); ++i)
    text += fmt::format("{}rank {} on {}", i == 0 ? "" : ", ", ranks[i], hosts_.at(ranks[i]));
  if (ranks.size() > kMostNames) text += fmt::format(" and {} more", ranks.size() - kMostNames);
  return text;
}

std::string RollCall::describe_free(const Ranks& ranks, const Answers& answers) const {
  const bool works =
      std::ranges::any_of(ranks, [&](int rank) { return answers.at(rank).works != 0; });
  if (works) return names(ranks) + ": file input or output makes no progress";
  return names(ranks) + (ranks.size() > 1 ? " answer, but wait" : " answers, but waits") +
         " for nobody";
}

StallDiagnosis RollCall::take(const Ranks& ranks) {
  {
    const std::lock_guard lock(mutex_);
    answers_.clear();  // those of an earlier call are out of date
  }
  std::set<int> asked{rank_};  // whether messages still travel at all
  asked.insert(ranks.begin(), ranks.end());
  Ranks next(asked.begin(), asked.end());
  for (int round = 0; round < kMostRounds && !next.empty(); ++round) {
    const Answers answers = answers_of(next);
    if (!answers.contains(rank_)) return {};
    Ranks silent, free, others;
    double progress_due = 0.0;
    for (const int rank : next) {
      const auto found = answers.find(rank);
      if (found == answers.end()) {
        silent.push_back(rank);
        continue;
      }
      const Answer& answer = found->second;
      if (answer.works != 0) progress_due = std::max(progress_due, answer.progress_due);
      if (answer.waits == 0) free.push_back(rank);
      for (int i = 0; i < answer.count; ++i)
        if (asked.insert(answer.ranks[i]).second) others.push_back(answer.ranks[i]);
    }
    if (!silent.empty()) return {.text = "no answer from " + names(silent)};
    if (progress_due > 0.0) return {.progress_due = to_duration(progress_due)};
    if (!free.empty()) return {.text = describe_free(free, answers)};
    next = std::move(others);
  }
  return {.text = "all ranks that it waits for wait, too"};
}

}  // namespace trireme::comm
