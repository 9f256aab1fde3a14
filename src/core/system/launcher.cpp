#include "core/system/launcher.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <vector>

namespace trireme {
namespace {

constexpr std::chrono::seconds kLookInterval{1};

std::vector<pid_t> children_of(pid_t process) {
  std::vector<pid_t> children;
  std::error_code error;
  for (std::filesystem::directory_iterator thread(fmt::format("/proc/{}/task", process), error);
       !error && thread != std::filesystem::directory_iterator(); thread.increment(error)) {
    std::ifstream list(thread->path() / "children");
    for (pid_t child = 0; list >> child;) children.push_back(child);
  }
  return children;
}

/// The text of a file of /proc; "" of a process that has ended.
std::string text_of(pid_t process, const char* file) {
  std::ifstream stream(fmt::format("/proc/{}/{}", process, file), std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

/// Whether Open MPI started the process as a rank; a process that has ended has no environment.
bool is_rank(pid_t process) {
  static const std::string kVariable = "OMPI_COMM_WORLD_RANK=";
  const std::string environment = text_of(process, "environ");
  return environment.starts_with(kVariable) ||
         environment.find('\0' + kVariable) != std::string::npos;
}

bool is_stopped(pid_t process) {
  const std::string stat = text_of(process, "stat");  // "812 (name) T ..."
  const std::size_t name_end = stat.rfind(')');
  return name_end != std::string::npos && stat.compare(name_end, 3, ") T") == 0;
}

}  // namespace

bool LauncherWatch::hangs() {
  const auto now = Clock::now();
  if (now >= next_look_) {
    next_look_ = now + kLookInterval;
    std::vector<pid_t> ranks = children_of(launcher_);
    std::erase_if(ranks, [](pid_t child) { return !is_rank(child); });
    most_ = std::max(most_, ranks.size());
    const bool idle = ranks.size() < most_ && std::ranges::all_of(ranks, is_stopped);
    if (!idle)
      idle_since_.reset();
    else if (!idle_since_)
      idle_since_ = now;
  }
  return idle_since_ && now - *idle_since_ >= timeout_;
}

void LauncherWatch::kill() const {
  const std::vector<pid_t> children = children_of(launcher_);
  ::kill(launcher_, SIGKILL);
  for (const pid_t child : children) ::kill(child, SIGKILL);
}

}  // namespace trireme
