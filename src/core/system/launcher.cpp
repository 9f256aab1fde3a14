#include "core/system/launcher.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <regex>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "core/files.hpp"

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

// ---------------------------------------------------------------------------- words

namespace {

/// Whether two names are those of one host: of which one may have a domain.
bool same_host(std::string_view a, std::string_view b) {
  const std::size_t dot_a = a.find('.'), dot_b = b.find('.');
  const bool one_is_short = (dot_a == a.npos) != (dot_b == b.npos);
  return a == b || (one_is_short && a.substr(0, dot_a) == b.substr(0, dot_b));
}

}  // namespace

bool names_host(const std::vector<std::string>& hosts, std::string_view host) {
  return std::ranges::any_of(hosts, [&](const auto& each) { return same_host(each, host); });
}

namespace {

/// Where the words of Open MPI's mpirun name a host file: the word, and what precedes the path.
struct HostFile {
  std::size_t word = 0;
  std::string prefix, path;
};

std::optional<HostFile> host_file_of(const std::vector<std::string>& words) {
  for (std::size_t i = 1; i < words.size(); ++i)
    for (const char* name : {"--hostfile", "-hostfile", "--machinefile", "-machinefile"}) {
      const std::string prefix = std::string(name) + "=";
      if (words[i] == name && i + 1 < words.size()) return HostFile{i + 1, "", words[i + 1]};
      if (words[i].starts_with(prefix)) return HostFile{i, prefix, words[i].substr(prefix.size())};
    }
  return std::nullopt;
}

/// The host that a line of a host file names.
std::string host_of(const std::string& line) { return line.substr(0, line.find_first_of(" \t:#")); }

/// Writes the lines of the host file at `path` that name none of `hosts` to a file in `folder`, and
/// returns its path; "" where one of `hosts` has no line.
std::string copy_host_file(const std::string& path, const std::vector<std::string>& hosts,
                           const std::filesystem::path& folder) {
  std::istringstream lines(read_file(path));
  std::string kept;
  std::vector<std::string> removed;
  for (std::string line; std::getline(lines, line);)
    if (names_host(hosts, host_of(line)))
      removed.push_back(host_of(line));
    else
      kept += line + "\n";
  if (!std::ranges::all_of(hosts, [&](const auto& host) { return names_host(removed, host); }))
    return "";
  const std::filesystem::path target = folder / "hosts-without-suspects";
  write_file_atomically(target, kept);
  return target.string();
}

}  // namespace

std::vector<std::string> without_hosts(const std::vector<std::string>& words,
                                       const std::vector<std::string>& hosts,
                                       const std::filesystem::path& folder) {
  if (words.empty() || hosts.empty()) return {};
  std::vector<std::string> changed = words;
  if (std::filesystem::path(words[0]).filename() == "srun") {
    const std::string list = fmt::format("{}", fmt::join(hosts, ","));
    // Of two such options srun takes the last.
    for (std::size_t i = 1; i < changed.size(); ++i) {
      const bool follows = (words[i - 1] == "--exclude" || words[i - 1] == "-x") && i > 1;
      if (!follows && !words[i].starts_with("--exclude=")) continue;
      changed[i] += "," + list;
      return changed;
    }
    changed.insert(changed.begin() + 1, "--exclude=" + list);
    return changed;
  }
  const std::optional<HostFile> file = host_file_of(words);
  if (!file) return {};
  const std::string copy = copy_host_file(file->path, hosts, folder);
  if (copy.empty()) return {};
  changed[file->word] = file->prefix + copy;
  return changed;
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
  const std::optional<HostFile> file = host_file_of(words);
  const std::string ranks = value_of({"-n", "-np", "--np", "-c"});
  if (!file || ranks.empty()) return false;
  std::int64_t slots = 0;
  std::istringstream lines(read_file(file->path));
  for (std::string line; std::getline(lines, line);) {
    const std::string host = host_of(line);
    if (host.empty() || names_host(hosts, host)) continue;
    const std::size_t at = line.find("slots="), colon = host.size();
    if (at != std::string::npos)
      slots += std::atoll(line.c_str() + at + 6);
    else
      slots += colon < line.size() && line[colon] == ':' ? std::atoll(line.c_str() + colon + 1) : 1;
  }
  return slots >= std::atoll(ranks.c_str());
}

}  // namespace trireme
