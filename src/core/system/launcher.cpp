#include "core/system/launcher.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace trireme {
namespace {

constexpr std::chrono::seconds kCheckInterval{1};
/// After a longer pause, as when this process was stopped with its job, the time-out begins again.
constexpr std::chrono::seconds kMaxPause{10};

/// The text of a file; nothing where it cannot be read.
std::optional<std::string> text_of(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream.is_open()) return std::nullopt;
  std::string text;
  std::array<char, 4096> part{};
  while (stream.read(part.data(), part.size()) || stream.gcount() > 0)
    text.append(part.data(), static_cast<std::size_t>(stream.gcount()));
  if (stream.bad()) return std::nullopt;
  return text;
}

/// The processes that a process has started; nothing where they cannot all be read.
std::optional<std::vector<pid_t>> children_of(pid_t process) {
  std::vector<pid_t> children;
  std::error_code error;
  std::filesystem::directory_iterator thread(fmt::format("/proc/{}/task", process), error);
  for (; !error && thread != std::filesystem::directory_iterator(); thread.increment(error)) {
    const auto text = text_of(thread->path() / "children");
    if (!text) return std::nullopt;
    std::istringstream list(*text);
    for (pid_t child = 0; list >> child;) children.push_back(child);
  }
  if (error) return std::nullopt;
  return children;
}

struct ProcessState {
  char letter = 0;
  std::uint64_t start_time = 0;

  bool ended() const { return letter == 'Z' || letter == 'X'; }
  /// By a signal; a process that a debugger holds (t) is the user's.
  bool stopped() const { return letter == 'T'; }
};

std::optional<ProcessState> state_of(pid_t process) {
  const auto text = text_of(fmt::format("/proc/{}/stat", process));  // "812 (name) T ..."
  if (!text) return std::nullopt;
  const std::size_t name_end = text->rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(text->substr(name_end + 1));
  ProcessState state;
  fields >> state.letter;
  std::string skipped;
  for (int field = 4; field < 22; ++field) fields >> skipped;
  if (!(fields >> state.start_time)) return std::nullopt;
  return state;
}

/// The environment with which a process was started; nothing where it cannot be read.
std::optional<std::string> environment_of(pid_t process) {
  return text_of(fmt::format("/proc/{}/environ", process));
}

/// A variable of an environment.
std::optional<std::string> variable(const std::string& environment, std::string_view name) {
  const std::string variables = '\0' + environment, key = '\0' + std::string(name) + '=';
  const std::size_t begin = variables.find(key);
  if (begin == std::string::npos) return std::nullopt;
  return std::string(variables.c_str() + begin + key.size());
}

constexpr std::string_view kRank = "OMPI_COMM_WORLD_RANK";
constexpr std::string_view kSize = "OMPI_COMM_WORLD_SIZE";

}  // namespace

bool LauncherWatch::other_runs(pid_t process, bool in_rank) {
  const auto children = children_of(process);
  if (!children) return true;
  bool found = false;
  for (const pid_t child : *children) {
    const auto state = state_of(child);
    if (!state) found = true;
    if (!state || state->ended()) continue;
    bool rank = ranks_.contains({child, state->start_time});
    if (const auto environment = rank || in_rank ? std::nullopt : environment_of(child);
        environment && variable(*environment, kRank)) {
      rank = true;
      ranks_.insert({child, state->start_time});
      const std::string size = variable(*environment, kSize).value_or("");
      world_size_ = std::max<std::size_t>(world_size_, std::strtoul(size.c_str(), nullptr, 10));
    }
    if (!rank) found = true;
    // The launcher works while a rank runs, whatever that rank has started.
    if (!rank || state->stopped()) found |= other_runs(child, in_rank || rank);
  }
  return found;
}

bool LauncherWatch::ranks_have_ended() const {
  bool one_ended = false;
  for (const auto& [process, start_time] : ranks_) {
    const auto state = state_of(process);
    if (!state) {
      if (::kill(process, 0) == 0 || errno != ESRCH) return false;
      one_ended = true;
    } else if (state->start_time != start_time || state->ended()) {
      one_ended = true;
    } else if (!state->stopped()) {
      return false;
    }
  }
  return one_ended;
}

void LauncherWatch::check() {
  if (launcher_ <= 0) return;
  const auto now = Clock::now();
  if (now - next_check_ > kMaxPause) idle_since_.reset();
  next_check_ = now + kCheckInterval;
  const auto state = state_of(launcher_);
  const auto environment = environment_of(launcher_);
  const bool works = other_runs(launcher_, false) || !state || state->stopped() || !environment ||
                     variable(*environment, kRank);
  const bool idle = !works && world_size_ > 0 && ranks_.size() >= world_size_ && ranks_have_ended();
  if (!idle)
    idle_since_.reset();
  else if (!idle_since_)
    idle_since_ = now;
}

bool LauncherWatch::hangs() {
  if (Clock::now() >= next_check_) check();
  return idle_since_ && Clock::now() - *idle_since_ >= timeout_;
}

void LauncherWatch::kill() const {
  if (launcher_ <= 0) return;
  const std::vector<pid_t> children = children_of(launcher_).value_or(std::vector<pid_t>());
  ::kill(launcher_, SIGKILL);
  for (const pid_t child : children) ::kill(child, SIGKILL);
}

}  // namespace trireme
