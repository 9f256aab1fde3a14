#include "report/reporter.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>
#include <utility>

#include "core/clock.hpp"

namespace trireme::report {
namespace {

/// Runs $TRIREME_HOOK; timeout (coreutils) ends it with 124, or 137 where it does not end.
constexpr const char* kRunHook =
    "if command -v timeout >/dev/null; then\n"
    "  exec timeout --kill-after=5 \"$TRIREME_TIMEOUT\" sh -c \"$TRIREME_HOOK\"\n"
    "fi\n"
    "exec sh -c \"$TRIREME_HOOK\"\n";

/// Reads what the run tells until it says that it has ended, or its process has.
constexpr const char* kGuard =
    "TRIREME_REASON='rank 0 was killed, or ended by the error that it printed'\n"
    "while read -r key value; do\n"
    "  case $key in\n"
    "    iteration) TRIREME_ITERATION=$value ;;\n"
    "    reason) TRIREME_REASON=$value ;;\n"
    "    code) TRIREME_EXIT_CODE=$value ;;\n"
    "    end) exit 0 ;;\n"
    "  esac\n"
    "done\n"
    "export TRIREME_ITERATION TRIREME_REASON TRIREME_EXIT_CODE\n";

/// Whether a variable tells programs which rank of which job they are.
bool is_of_launcher(const char* variable) {
  for (const char* prefix : {"OMPI_", "PMIX_", "PMI_", "SLURM_PROCID=", "TRIREME_REASON="})
    if (std::strncmp(variable, prefix, std::strlen(prefix)) == 0) return true;
  return false;
}

std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

void print_warnings(const std::vector<std::string>& messages) {
  for (const std::string& message : messages)
    std::fputs(fmt::format("warning: {}\n", message).c_str(), stderr);
}

}  // namespace

Hooks::Hooks(const deck::Hooks& commands, std::filesystem::path folder, double seconds_at_end)
    : commands_(commands),
      folder_(std::filesystem::absolute(folder)),
      seconds_at_end_(seconds_at_end) {
  if (!commands_.fault) return;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    failures_.push_back("hooks.fault: there is no pipe");
    return;
  }
  const pid_t child = spawn(
      std::string(kGuard) + kRunHook,
      {{"TRIREME_EVENT", "fault"}, {"TRIREME_HOOK", *commands_.fault}, {"TRIREME_ITERATION", "0"}},
      ends[0]);
  ::close(ends[0]);
  if (child > 0) {
    guard_ = ends[1];
  } else {
    ::close(ends[1]);
    failures_.push_back("hooks.fault: there is no shell");
  }
}

Hooks::~Hooks() {
  const Stopwatch watch;
  while (true) {
    print_warnings(poll());
    if ((!running_ && waiting_.empty()) || watch.seconds() >= seconds_at_end_) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  if (running_) failures_.push_back(fmt::format("hooks.{} still runs", running_->event));
  if (!waiting_.empty() && waiting_.back().event == "stop") {
    start(std::move(waiting_.back()));
    waiting_.pop_back();
  }
  leave_out(waiting_, "the run ended while an earlier hook ran");
  print_warnings(failures_);
  if (guard_ >= 0) ::close(guard_);
}

void Hooks::checkpoint(std::int64_t iteration, const std::string& path) {
  note(iteration);
  add("checkpoint", commands_.checkpoint,
      {{"TRIREME_ITERATION", std::to_string(iteration)},
       {"TRIREME_PATH", std::filesystem::absolute(path).string()}});
}

void Hooks::stop(std::int64_t iteration, const std::string& reason, int exit_code) {
  tell_guard("end");
  add("stop", commands_.stop,
      {{"TRIREME_ITERATION", std::to_string(iteration)},
       {"TRIREME_REASON", reason},
       {"TRIREME_EXIT_CODE", std::to_string(exit_code)}});
}

void Hooks::fault(const std::string& reason, int exit_code) {
  tell_guard("reason " + one_line(reason));
  tell_guard(fmt::format("code {}", exit_code));
  if (guard_ >= 0) ::close(std::exchange(guard_, -1));
}

void Hooks::note(std::int64_t iteration) { tell_guard(fmt::format("iteration {}", iteration)); }

void Hooks::tell_guard(const std::string& line) {
  if (guard_ < 0) return;
  const std::string text = line + "\n";
  // The guard may be gone: no signal for that.
  const auto before = std::signal(SIGPIPE, SIG_IGN);
  if (::write(guard_, text.data(), text.size()) < 0) ::close(std::exchange(guard_, -1));
  std::signal(SIGPIPE, before);
}

void Hooks::add(const std::string& event, const std::optional<std::string>& command,
                std::map<std::string, std::string> environment) {
  if (!command) return;
  environment["TRIREME_EVENT"] = event;
  environment["TRIREME_HOOK"] = *command;
  waiting_.push_back({event, *command, std::move(environment)});
}

std::vector<std::string> Hooks::poll() {
  int status = 0;
  if (running_ && ::waitpid(child_, &status, WNOHANG) == child_) {
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    // timeout's own codes, which the command itself may return as well.
    const bool ended = (code == 124 || code == 137) &&
                       since_started_.seconds() >= deck::in_seconds(commands_.timeout);
    if (code != 0)
      failures_.push_back(fmt::format("hooks.{} {} (its output is in {}): {}", running_->event,
                                      ended ? "took longer than hooks.timeout and was ended"
                                            : fmt::format("failed with exit code {}", code),
                                      (folder_ / "hooks.log").string(), running_->command));
    running_.reset();
  }
  std::deque<Call> gone;
  while (!running_ && !waiting_.empty()) {
    Call next = std::move(waiting_.front());
    waiting_.pop_front();
    if (next.lacks_file())
      gone.push_back(std::move(next));
    else
      start(std::move(next));
  }
  leave_out(gone, "deleted, as by checkpoint.keep, while an earlier hook ran");
  return std::exchange(failures_, {});
}

bool Hooks::Call::lacks_file() const {
  const auto path = environment.find("TRIREME_PATH");
  std::error_code error;
  return path != environment.end() && std::filesystem::status(path->second, error).type() ==
                                          std::filesystem::file_type::not_found;
}

void Hooks::start(Call call) {
  running_ = std::move(call);
  since_started_ = Stopwatch();
  child_ = spawn(kRunHook, running_->environment, /*input=*/-1);
  if (child_ > 0) return;
  failures_.push_back(fmt::format("hooks.{}: there is no shell", running_->event));
  running_.reset();
}

void Hooks::leave_out(const std::deque<Call>& calls, const char* reason) {
  if (calls.empty()) return;
  const std::string& first = calls.front().environment.at("TRIREME_ITERATION");
  const std::string& last = calls.back().environment.at("TRIREME_ITERATION");
  failures_.push_back(fmt::format(
      "hooks.checkpoint did not run for {}: {}",
      calls.size() == 1
          ? "the checkpoint of iteration " + first
          : fmt::format("{} checkpoints of iterations {} to {}", calls.size(), first, last),
      reason));
}

pid_t Hooks::spawn(const std::string& script, const std::map<std::string, std::string>& environment,
                   int input) const {
  std::vector<std::string> added = {
      fmt::format("TRIREME_TIMEOUT={:.3f}", deck::in_seconds(commands_.timeout)),
      "TRIREME_RUN=" + folder_.string()};
  for (const auto& [name, value] : environment) added.push_back(name + "=" + value);
  std::vector<char*> words;
  for (std::string& word : added) words.push_back(word.data());
  for (char** word = environ; *word; ++word)
    if (!is_of_launcher(*word)) words.push_back(*word);
  words.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (input >= 0)
    posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
  else
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  const std::string log = (folder_ / "hooks.log").string();
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, log.c_str(),
                                   O_WRONLY | O_CREAT | O_APPEND, 0644);
  posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  // A separate session: launchers signal the groups of their ranks. Signals as a shell expects.
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  std::string shell = "sh", option = "-c", text = script;
  char* arguments[] = {shell.data(), option.data(), text.data(), nullptr};
  pid_t child = 0;
  if (::posix_spawn(&child, "/bin/sh", &actions, &attributes, arguments, words.data()) != 0)
    child = 0;
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  return child;
}

}  // namespace trireme::report
