#include "train/startup/launch.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>

#include "core/clock.hpp"
#include "core/files.hpp"
#include "core/system/launcher.hpp"
#include "core/system/process.hpp"
#include "report/metrics.hpp"
#include "train/run_state.hpp"
#include "train/verify/step_verifier.hpp"

namespace trireme::train {
namespace {

constexpr std::chrono::milliseconds kPollInterval{100};
constexpr double kFirstDelay = 1.0, kMaxDelay = 60.0;  // seconds
/// Starts in which a host loses a rank before it is left out.
constexpr int kMaxLosses = 2;
/// Exit codes of shells and launchers for a process that a signal ended begin here.
constexpr int kSignalBase = 128;

void say(const std::string& text) { std::fputs(("supervise: " + text + "\n").c_str(), stderr); }

/// What the standard error of a launcher says, passed on line by line.
class LauncherOutput {
 public:
  explicit LauncherOutput(int pipe) : pipe_(pipe) { ::fcntl(pipe_, F_SETFL, O_NONBLOCK); }
  ~LauncherOutput() { ::close(pipe_); }
  LauncherOutput(const LauncherOutput&) = delete;
  LauncherOutput& operator=(const LauncherOutput&) = delete;

  /// Passes on what there is, and waits for more for `limit` at most. False at its end.
  bool pass_on(std::chrono::milliseconds limit) {
    pollfd ready{.fd = pipe_, .events = POLLIN, .revents = 0};
    if (::poll(&ready, 1, static_cast<int>(limit.count())) <= 0) return true;
    std::array<char, 4096> buffer;
    const ssize_t got = ::read(pipe_, buffer.data(), buffer.size());
    if (got < 0) return errno == EINTR || errno == EAGAIN;
    std::fwrite(buffer.data(), 1, static_cast<std::size_t>(got), stderr);
    for (const char c : std::string_view(buffer.data(), static_cast<std::size_t>(got))) {
      if (c != '\n') {
        line_ += c;
        continue;
      }
      if (lost_host_.empty()) lost_host_ = host_that_lost_a_rank(line_);
      line_.clear();
    }
    return got > 0;
  }
  /// The host of the first rank that was lost; "" where none was named.
  const std::string& lost_host() const { return lost_host_; }

 private:
  int pipe_;
  std::string line_, lost_host_;
};

/// A launcher that runs.
struct Started {
  pid_t process;
  std::unique_ptr<LauncherOutput> output;
};

/// Starts `words` in a new process group, which a terminal's signals do not reach. Throws
/// UsageError where there is no such program, IoError where the machine has no space for a process.
Started start(const std::vector<std::string>& words) {
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0)
    throw IoError("cannot start '{}': {}", words[0], std::strerror(errno));
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
  ::posix_spawnattr_init(&attributes);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  // After srun's other fences, which can return early, ranks may crash in MPI_Init.
  ::setenv("SLURM_PMIX_FENCE", "ring", /*overwrite=*/0);
  pid_t child = 0;
  const int error =
      ::posix_spawnp(&child, arguments[0], &actions, &attributes, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  ::close(ends[1]);
  if (error != 0) {
    ::close(ends[0]);
    if (error == EAGAIN || error == ENOMEM)
      throw IoError("cannot start '{}': {}", words[0], std::strerror(error));
    throw UsageError("--supervise: cannot start '{}': {}", words[0], std::strerror(error));
  }
  return {child, std::make_unique<LauncherOutput>(ends[0])};
}

/// The last start that metrics.jsonl in `folder` tells of, if any.
std::optional<report::RunStart> last_start(const std::filesystem::path& folder) {
  std::error_code unreadable;
  const std::filesystem::path metrics = folder / "metrics.jsonl";
  if (!std::filesystem::exists(metrics, unreadable)) return std::nullopt;
  return report::last_start(read_file(metrics), std::nullopt);
}

/// The exit code of a start that has written its stop event since `began`, a time since 1970.
std::optional<int> recorded_exit_code(const std::filesystem::path& folder, double began) {
  const auto last = last_start(folder);
  if (!last || last->began < began || !last->exit_code) return std::nullopt;
  return static_cast<int>(*last->exit_code);
}

/// Waits for the end of `child`, and asks it to stop once this process is asked to; kills it when
/// it hangs. Returns its exit code, 128 + n where signal n ended it; of one that hung that of its
/// ranks, where they have recorded one.
int wait_for(const Started& child, const SupervisedRun& run) {
  const double began = unix_time();
  LauncherWatch watch(child.process, run.launcher_timeout);
  bool asked = false, open = true, hung = false;
  int status = 0;
  pid_t ended = 0;
  while ((ended = ::waitpid(child.process, &status, WNOHANG)) == 0) {
    if (stop_signal() != 0 && !asked) {
      asked = true;
      say("stopping the run");
      ::kill(child.process, SIGUSR1);
    }
    if (!hung && watch.hangs()) {
      hung = true;
      say(fmt::format("the launcher hangs: killing it {} s after its ranks have ended",
                      run.launcher_timeout.count()));
      watch.kill();
    }
    if (open)
      open = child.output->pass_on(kPollInterval);
    else
      std::this_thread::sleep_for(kPollInterval);
  }
  // Ranks that outlive their launcher may keep the pipe open.
  for (const Stopwatch watch; open && watch.seconds() < 1.0;)
    open = child.output->pass_on(kPollInterval);
  TRIREME_CHECK(ended == child.process, "the exit code of the launcher is lost");
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : kSignalBase + WTERMSIG(status);
  return hung ? recorded_exit_code(run.folder, began).value_or(code) : code;
}

/// How a start of the run ended.
struct Ending {
  int code = 0;
  std::int64_t iteration = 0;  ///< the last one that it reported
  std::string cause;

  bool operator==(const Ending&) const = default;
};

Ending ending_of(int code, const std::filesystem::path& folder) {
  Ending ending{.code = code};
  if (const auto last = last_start(folder)) {
    ending.iteration = last->reached;
    ending.cause = last->cause;
  }
  return ending;
}

/// Whether another start may help after `ending`.
bool ended_early(const Ending& ending) {
  const bool by_time = ending.cause == describe(StopReason::time_limit) ||
                       ending.cause == describe(StopReason::exit_duration);
  const bool early = ending.code == static_cast<int>(ExitCode::stopped_early);
  return (early && !by_time) || ending.code > kSignalBase;
}

/// The hosts that runs in `folder` found to compute wrong results.
std::vector<std::string> suspect_hosts(const std::filesystem::path& folder) {
  std::ifstream file(suspect_hosts_file(folder.string()));
  std::vector<std::string> hosts;
  for (std::string host; std::getline(file, host);)
    if (std::ranges::find(hosts, host) == hosts.end()) hosts.push_back(host);
  return hosts;
}

/// Sleeps, unless this process is asked to stop.
void pause_for(double seconds) {
  for (const Stopwatch watch; watch.seconds() < seconds && stop_signal() == 0;)
    std::this_thread::sleep_for(kPollInterval);
}

void say_goodput(const std::filesystem::path& folder) {
  try {
    say(report::goodput_line(report::read_starts(folder)));
  } catch (const Error&) {
    // A run that never started has no events.
  }
}

}  // namespace

std::vector<std::string> supervised_words(int argc, char** argv, bool with_restart) {
  std::vector<std::string> words = {program_path()};
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool dropped =
        word.starts_with("--max-restarts") || (!with_restart && word.starts_with("--restart"));
    if (word.starts_with("--supervise")) {
      // The launcher may be a word of its own, which no option can be.
      i += word == "--supervise" && i + 1 < argc && argv[i + 1][0] != '-';
      continue;
    }
    if (dropped)
      i += word.find('=') == std::string::npos;
    else
      words.push_back(word);
  }
  return words;
}

namespace {

/// The hosts that later starts of a run leave out.
class LeftOutHosts {
 public:
  explicit LeftOutHosts(const SupervisedRun& run) : run_(run), known_(suspect_hosts(run.folder)) {}

  /// After an exit for wrong results: leaves out the hosts that computed them. False where the
  /// launcher names no hosts that others could replace.
  bool leave_out_suspects() {
    std::vector<std::string> found;
    for (const std::string& host : suspect_hosts(run_.folder))
      if (!names_host(hosts_, host)) found.push_back(host);
    // Those of earlier runs may be on none of this one's hosts.
    std::vector<std::string> fresh = found;
    std::erase_if(fresh, [&](const std::string& host) { return names_host(known_, host); });
    if (!fresh.empty()) found = fresh;
    const bool replaces = !found.empty() && can_leave_out(with(found));
    say(fmt::format(
        "silent data corruption on {}{}",
        found.empty() ? "an unknown host" : fmt::format("{}", fmt::join(found, ", ")),
        replaces ? ", which is left out from now on" : "; start the run on other hosts"));
    if (replaces) hosts_ = with(found);
    return replaces;
  }

  /// After a rank was lost on `host`: leaves it out the second time, where there are others.
  void count_loss(const std::string& host) {
    if (host.empty() || ++losses_[host] != kMaxLosses || names_host(hosts_, host)) return;
    const std::vector<std::string> all = with({host});
    const bool spares = can_leave_out(all) && has_spares(run_.again, all);
    say(fmt::format("{} lost a rank in {} starts{}", host, kMaxLosses,
                    spares ? " and is left out from now on" : "; there are no spare hosts for it"));
    if (spares) hosts_ = all;
  }

  /// The words of a launcher without these hosts.
  std::vector<std::string> remove_from(const std::vector<std::string>& words) const {
    const std::vector<std::string> changed = without_hosts(words, hosts_, run_.folder);
    return changed.empty() ? words : changed;
  }

 private:
  std::vector<std::string> with(const std::vector<std::string>& more) const {
    std::vector<std::string> all = hosts_;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  bool can_leave_out(const std::vector<std::string>& hosts) const {
    return !without_hosts(run_.again, hosts, run_.folder).empty();
  }

  const SupervisedRun& run_;
  const std::vector<std::string> known_;  ///< suspects of earlier runs
  std::vector<std::string> hosts_;
  std::map<std::string, int> losses_;  ///< of ranks, by host
};

/// `words` with another time for --time-limit.
std::vector<std::string> with_time_limit(std::vector<std::string> words, double seconds) {
  const std::string option = "--time-limit", value = fmt::format("{:.0f}s", seconds);
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] == option && i + 1 < words.size()) words[i + 1] = value;
    if (words[i].starts_with(option + "=")) words[i] = option + "=" + value;
  }
  return words;
}

}  // namespace

ExitCode supervise(const SupervisedRun& run) {
  std::optional<Ending> before;
  LeftOutHosts left_out(run);
  double delay = kFirstDelay;
  int code = 0;
  const Stopwatch watch;
  const auto earlier = last_start(run.folder);
  for (int restarts = 0;; ++restarts) {
    // A start that did not come to write its event has done nothing of what --restart says.
    const auto latest = last_start(run.folder);
    const bool has_begun = latest && (!earlier || latest->began != earlier->began);
    std::vector<std::string> words = left_out.remove_from(has_begun ? run.again : run.command);
    if (run.time_limit && restarts > 0) {
      const double left = std::floor(*run.time_limit - watch.seconds());
      if (left < 1) {
        say("no time is left for another start (--time-limit)");
        code = static_cast<int>(ExitCode::stopped_early);
        break;
      }
      words = with_time_limit(words, left);
    }
    const Started started = start(words);
    code = wait_for(started, run);
    const Ending ending = ending_of(code, run.folder);
    const bool corrupted = code == static_cast<int>(ExitCode::corrupted);
    if (stop_signal() != 0 || !(ended_early(ending) || corrupted)) break;
    if (corrupted && !left_out.leave_out_suspects()) break;
    left_out.count_loss(started.output->lost_host());
    const std::string what =
        fmt::format("the run ended with {} after iteration {} ({})", code, ending.iteration,
                    ending.cause.empty() ? "no event" : ending.cause);
    if (ending == before) {
      say(what + ", as it did before: another start would not help");
      code = static_cast<int>(ExitCode::failure);
      break;
    }
    if (restarts == run.max_restarts) {
      say(fmt::format("{}, and was started again {} times: --max-restarts", what, restarts));
      code = static_cast<int>(ExitCode::failure);
      break;
    }
    if (before && ending.iteration > before->iteration) delay = kFirstDelay;
    say(fmt::format("{}; starting it again in {:.0f} s", what, delay));
    pause_for(delay);
    if (stop_signal() != 0) break;
    delay = std::min(2.0 * delay, kMaxDelay);
    before = ending;
  }
  say_goodput(run.folder);
  return static_cast<ExitCode>(code);
}

}  // namespace trireme::train
