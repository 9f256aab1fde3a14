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
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <regex>
#include <sstream>
#include <string_view>
#include <thread>

#include "core/clock.hpp"
#include "core/files.hpp"
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

/// Writes the lines of the host file at `path` whose first word is none of `hosts`.
std::string copy_host_file(const std::string& path, const std::vector<std::string>& hosts,
                           const std::filesystem::path& folder) {
  std::istringstream lines(read_file(path));
  std::string kept;
  for (std::string line; std::getline(lines, line);) {
    const std::string host = line.substr(0, line.find_first_of(" \t:"));
    if (std::ranges::find(hosts, host) == hosts.end()) kept += line + "\n";
  }
  const std::filesystem::path target = folder / "hosts-without-suspects";
  write_file_atomically(target, kept);
  return target.string();
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

std::vector<std::string> without_hosts(const std::vector<std::string>& words,
                                       const std::vector<std::string>& hosts,
                                       const std::filesystem::path& folder) {
  if (words.empty() || hosts.empty()) return {};
  std::vector<std::string> changed = words;
  if (std::filesystem::path(words[0]).filename() == "srun") {
    changed.insert(changed.begin() + 1, fmt::format("--exclude={}", fmt::join(hosts, ",")));
    return changed;
  }
  for (std::size_t i = 0; i + 1 < changed.size(); ++i) {
    const std::string& word = changed[i];
    if (word != "--hostfile" && word != "-hostfile" && word != "--machinefile" &&
        word != "-machinefile")
      continue;
    changed[i + 1] = copy_host_file(changed[i + 1], hosts, folder);
    return changed;
  }
  return {};
}

std::string host_that_lost_a_rank(const std::string& line) {
  static const std::array patterns = {
      std::regex("noticed that process rank .* on node (\\S+) exited on signal"),
      std::regex("[Rr]emote daemon: .* on node (\\S+)"),
      std::regex("srun: error: (\\S+): tasks? .*: (?:Killed|.*fault|.*error|Aborted)"),
      std::regex("srun: error: Node failure on (\\S+)")};
  std::smatch found;
  for (const std::regex& pattern : patterns)
    if (std::regex_search(line, found, pattern)) return found[1];
  return "";
}

bool has_spares(const std::vector<std::string>& words, const std::vector<std::string>& hosts) {
  const auto value_of = [&](std::initializer_list<std::string_view> names) {
    for (std::size_t i = 1; i < words.size(); ++i)
      for (const std::string_view name : names) {
        if (words[i] == name && i + 1 < words.size()) return words[i + 1];
        if (words[i].starts_with(std::string(name) + "=")) return words[i].substr(name.size() + 1);
      }
    return std::string();
  };
  if (std::filesystem::path(words[0]).filename() == "srun") {
    const char* all = std::getenv("SLURM_JOB_NUM_NODES");
    const std::string wanted = value_of({"-N", "--nodes"});
    return all && !wanted.empty() &&
           std::atoll(all) - std::ssize(hosts) >= std::atoll(wanted.c_str());
  }
  const std::string file = value_of({"--hostfile", "-hostfile", "--machinefile", "-machinefile"});
  const std::string ranks = value_of({"-n", "-np", "--np", "-c"});
  if (file.empty() || ranks.empty()) return false;
  std::int64_t slots = 0;
  std::istringstream lines(read_file(file));
  for (std::string line; std::getline(lines, line);) {
    const std::string host = line.substr(0, line.find_first_of(" \t:#"));
    if (host.empty() || std::ranges::find(hosts, host) != hosts.end()) continue;
    const std::size_t at = line.find("slots="), colon = host.size();
    if (at != std::string::npos)
      slots += std::atoll(line.c_str() + at + 6);
    else
      slots += colon < line.size() && line[colon] == ':' ? std::atoll(line.c_str() + colon + 1) : 1;
  }
  return slots >= std::atoll(ranks.c_str());
}

namespace {

/// The hosts that lost ranks too often or computed wrong results, where there are others for them;
/// else none.
std::vector<std::string> unreliable_hosts(const SupervisedRun& run,
                                          const std::map<std::string, int>& losses) {
  std::vector<std::string> hosts = suspect_hosts(run.folder), unreliable;
  for (const auto& [host, count] : losses)
    if (count >= kMaxLosses) unreliable.push_back(host);
  for (const std::string& host : unreliable)
    if (std::ranges::find(hosts, host) == hosts.end()) hosts.push_back(host);
  const bool spares = has_spares(run.again, hosts);
  say(fmt::format("{} lost a rank in {} starts{}", fmt::join(unreliable, ", "), kMaxLosses,
                  spares ? " and is left out from now on" : "; there are no spare hosts for it"));
  return spares ? hosts : std::vector<std::string>{};
}

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
  std::map<std::string, int> losses;  // of ranks, by host
  std::vector<std::string> left_out;  // hosts
  double delay = kFirstDelay;
  int code = 0;
  const Stopwatch watch;
  const auto earlier = last_start(run.folder);
  for (int restarts = 0;; ++restarts) {
    // A start that did not come to write its event has done nothing of what --restart says.
    const auto latest = last_start(run.folder);
    const bool has_begun = latest && (!earlier || latest->began != earlier->began);
    std::vector<std::string> words = has_begun ? run.again : run.command;
    if (!left_out.empty()) words = without_hosts(words, left_out, run.folder);
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
    if (corrupted) {
      const std::vector<std::string> hosts = suspect_hosts(run.folder);
      const bool replaces = !without_hosts(run.again, hosts, run.folder).empty();
      say(fmt::format(
          "silent data corruption on {}{}",
          hosts.empty() ? "an unknown host" : fmt::format("{}", fmt::join(hosts, ", ")),
          replaces ? ", which is left out from now on" : "; start the run on other hosts"));
      if (!replaces) break;
      left_out = hosts;
    }
    if (const std::string& host = started.output->lost_host(); !host.empty())
      if (++losses[host] == kMaxLosses) left_out = unreliable_hosts(run, losses);
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
