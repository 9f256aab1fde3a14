#include "comm/mpi/stall_diagnostics.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <set>
#include <utility>

#include "comm/mpi/mpi_communicator.hpp"
#include "core/system/process.hpp"

namespace trireme::comm {
namespace {

enum Tag { kQuestion, kAnswer, kStacks, kStacksBegun, kStacksWritten };

/// Polling interval for questions.
constexpr std::chrono::milliseconds kPollInterval{100};
/// Long enough for an answer on a busy machine.
constexpr std::chrono::seconds kAnswerTimeout{3};
/// The number of axes of a layout: along them any rank can be reached from any other.
constexpr int kMaxRounds = 3;
/// Ranks named in a message.
constexpr std::size_t kMaxNames = 8;

/// Sends `rank` an empty message. An error is ignored: the answer will be missing.
void send_tag(MPI_Comm handle, int rank, Tag tag) {
  MPI_Request request = MPI_REQUEST_NULL;
  if (MPI_Isend(nullptr, 0, MPI_BYTE, rank, tag, handle, &request) == MPI_SUCCESS)
    MPI_Request_free(&request);
}

}  // namespace

StallDiagnostics::StallDiagnostics(std::vector<std::string> hosts,
                                   std::shared_ptr<Watchdog> watchdog)
    : hosts_(std::move(hosts)), watchdog_(std::move(watchdog)) {
  TRIREME_MPI(MPI_Comm_dup(MPI_COMM_WORLD, &handle_));
  TRIREME_MPI(MPI_Comm_rank(handle_, &rank_));
  thread_ = std::thread([this] { serve(); });
}

StallDiagnostics::~StallDiagnostics() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
  if (std::uncaught_exceptions() == 0) MPI_Comm_free(&handle_);
}

// ---------------------------------------------------------------------------- the thread

// Errors of MPI_Isend are ignored: the answer will be missing.

void StallDiagnostics::serve() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    wake_.wait_for(lock, kPollInterval,
                   [this] { return stop_ || wants_stacks_ || !to_ask_.empty(); });
    const Ranks ranks = std::exchange(to_ask_, {});
    const bool stacks = std::exchange(wants_stacks_, false);
    lock.unlock();
    ask(ranks);
    if (stacks) ask_for_stacks();
    answer_questions();
    report_stacks();
    Answers received = received_answers();
    lock.lock();
    answers_.merge(received);
    answered_.notify_one();
  }
}

void StallDiagnostics::ask(const Ranks& ranks) {
  for (const int rank : ranks) send_tag(handle_, rank, kQuestion);
}

void StallDiagnostics::ask_for_stacks() {
  for (int rank = 0; rank < static_cast<int>(hosts_.size()); ++rank)
    send_tag(handle_, rank, kStacks);
}

void StallDiagnostics::answer_questions() {
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
  while (MPI_Iprobe(MPI_ANY_SOURCE, kStacks, handle_, &found, &status) == MPI_SUCCESS && found) {
    MPI_Recv(nullptr, 0, MPI_BYTE, status.MPI_SOURCE, kStacks, handle_, MPI_STATUS_IGNORE);
    send_tag(handle_, status.MPI_SOURCE, kStacksBegun);
    stacks_for_.push_back(status.MPI_SOURCE);
    start_to_write_stacks();
  }
}

void StallDiagnostics::report_stacks() {
  if (!are_stacks_under_way())
    for (const int rank : std::exchange(stacks_for_, {})) send_tag(handle_, rank, kStacksWritten);
  for (const Tag tag : {kStacksBegun, kStacksWritten}) {
    int found = 0;
    MPI_Status status;
    while (MPI_Iprobe(MPI_ANY_SOURCE, tag, handle_, &found, &status) == MPI_SUCCESS && found) {
      MPI_Recv(nullptr, 0, MPI_BYTE, status.MPI_SOURCE, tag, handle_, MPI_STATUS_IGNORE);
      const std::lock_guard lock(mutex_);
      (tag == kStacksBegun ? stacks_begun_ : stacks_written_).insert(status.MPI_SOURCE);
    }
  }
}

StallDiagnostics::Answers StallDiagnostics::received_answers() {
  Answers answers;
  int found = 0;
  MPI_Status status;
  while (MPI_Iprobe(MPI_ANY_SOURCE, kAnswer, handle_, &found, &status) == MPI_SUCCESS && found)
    MPI_Recv(&answers[status.MPI_SOURCE], sizeof(Answer), MPI_BYTE, status.MPI_SOURCE, kAnswer,
             handle_, MPI_STATUS_IGNORE);
  return answers;
}

StallDiagnostics::Answer StallDiagnostics::own_answer() const {
  const std::optional<Ranks> ranks = watchdog_->awaited();
  const auto due = watchdog_->progress_due();
  Answer answer{.waits = ranks.has_value(), .works = due.has_value()};
  if (due) answer.progress_due = std::chrono::duration<double>(*due).count();
  watchdog_->phase().copy(answer.phase, sizeof answer.phase - 1);
  if (!ranks) return answer;
  answer.count = static_cast<int>(std::min(ranks->size(), std::size(answer.ranks)));
  std::copy_n(ranks->begin(), answer.count, answer.ranks);
  return answer;
}

// ---------------------------------------------------------------------------- the caller

StallDiagnostics::Answers StallDiagnostics::answers_of(const Ranks& ranks) {
  std::unique_lock lock(mutex_);
  to_ask_ = ranks;
  wake_.notify_one();
  answered_.wait_for(lock, kAnswerTimeout, [&] {
    return std::all_of(ranks.begin(), ranks.end(),
                       [this](int rank) { return answers_.contains(rank); });
  });
  return answers_;
}

std::string StallDiagnostics::names(const Ranks& ranks) const {
  std::string text;
  for (std::size_t i = 0; i < std::min(ranks.size(), kMaxNames); ++i)
    text += fmt::format("{}rank {} on {}", i == 0 ? "" : ", ", ranks[i], hosts_.at(ranks[i]));
  if (ranks.size() > kMaxNames) text += fmt::format(" and {} more", ranks.size() - kMaxNames);
  return text;
}

std::string StallDiagnostics::describe_idle(const Ranks& ranks, const Answers& answers) const {
  const bool works =
      std::ranges::any_of(ranks, [&](int rank) { return answers.at(rank).works != 0; });
  if (works) return names(ranks) + ": file input or output makes no progress";
  const std::string phase = answers.at(ranks[0]).phase;
  return names(ranks) + (ranks.size() > 1 ? " answer but are" : " answers but is") +
         " in no communication call" + (phase.empty() ? "" : ", but in " + phase);
}

StallDiagnosis StallDiagnostics::diagnose(const Ranks& ranks) {
  const StallDiagnosis cause = find_cause(ranks);
  if (cause.progress_due.count() > 0) return cause;
  const std::lock_guard lock(mutex_);
  wants_stacks_ = true;
  asked_for_stacks_ = Watched::Clock::now();
  stacks_begun_.clear();
  stacks_written_.clear();
  wake_.notify_one();
  return cause;
}

bool StallDiagnostics::awaits_stacks() {
  const std::lock_guard lock(mutex_);
  if (!asked_for_stacks_) return false;
  const bool may_answer = Watched::Clock::now() - *asked_for_stacks_ < kAnswerTimeout;
  for (int rank = 0; rank < static_cast<int>(hosts_.size()); ++rank)
    if (!stacks_written_.contains(rank) &&
        (stacks_begun_.contains(rank) || (may_answer && !silent_.contains(rank))))
      return true;
  return false;
}

StallDiagnosis StallDiagnostics::find_cause(const Ranks& ranks) {
  {
    const std::lock_guard lock(mutex_);
    answers_.clear();  // of an earlier call
    silent_.clear();
  }
  std::set<int> asked{rank_};  // itself, to test whether MPI still transfers messages
  asked.insert(ranks.begin(), ranks.end());
  Ranks next(asked.begin(), asked.end());
  for (int round = 0; round < kMaxRounds && !next.empty(); ++round) {
    const Answers answers = answers_of(next);
    if (!answers.contains(rank_)) return {};
    Ranks silent, idle, others;
    double progress_due = 0.0;
    for (const int rank : next) {
      const auto found = answers.find(rank);
      if (found == answers.end()) {
        silent.push_back(rank);
        continue;
      }
      const Answer& answer = found->second;
      // In a communication call a rank does no work, however much CPU time it takes to wait.
      if (answer.works != 0 && answer.waits == 0)
        progress_due = std::max(progress_due, answer.progress_due);
      if (answer.waits == 0) idle.push_back(rank);
      for (int i = 0; i < answer.count; ++i)
        if (asked.insert(answer.ranks[i]).second) others.push_back(answer.ranks[i]);
    }
    if (!silent.empty()) {
      const std::lock_guard lock(mutex_);
      silent_.insert(silent.begin(), silent.end());
    }
    if (!silent.empty()) return {.text = "no answer from " + names(silent)};
    if (progress_due > 0.0) return {.progress_due = to_duration(progress_due)};
    if (!idle.empty()) return {.text = describe_idle(idle, answers)};
    next = std::move(others);
  }
  return {.text = "all ranks that it waits for are in communication calls as well"};
}

}  // namespace trireme::comm
