#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <set>
#include <thread>

#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/files.hpp"
#include "core/system/process.hpp"
#include "core/text.hpp"
#include "device/backend.hpp"
#include "report/metrics.hpp"
#include "sweep/sweep.hpp"

namespace trireme::sweep {
namespace {

/// The names of `count` visible GPUs: those of CUDA_VISIBLE_DEVICES, or their numbers.
std::vector<std::string> gpu_names(std::size_t count) {
  std::vector<std::string> names;
  if (const char* listed = std::getenv("CUDA_VISIBLE_DEVICES")) {
    const std::string text = listed;
    for (std::size_t begin = 0; begin <= text.size();) {
      const std::size_t end = std::min(text.find(',', begin), text.size());
      names.push_back(text.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  for (std::size_t i = names.size(); i < count; ++i) names.push_back(std::to_string(i));
  names.resize(count);
  return names;
}

int allowed_cores() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  return sched_getaffinity(0, sizeof mask, &mask) == 0 ? CPU_COUNT(&mask) : 1;
}

}  // namespace

Machine this_machine() {
  Machine machine{.cores = allowed_cores(),
                  .host_bytes = static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) *
                                static_cast<std::size_t>(sysconf(_SC_PAGESIZE))};
  const std::vector<device::Gpu> gpus = device::visible_gpus();
  machine.gpus = gpu_names(gpus.size());
  for (const device::Gpu& gpu : gpus)
    machine.gpu_bytes =
        machine.gpu_bytes == 0 ? gpu.memory_bytes : std::min(machine.gpu_bytes, gpu.memory_bytes);
  return machine;
}

std::optional<std::string> why_unfit(const Machine& machine, const Need& need,
                                     std::optional<int> max_ranks) {
  const auto [ranks, bytes, on_gpus] = need;
  const auto size = [](std::size_t value) { return human_bytes(static_cast<double>(value)); };
  const int places = on_gpus ? static_cast<int>(machine.gpus.size()) : machine.cores;
  if (max_ranks && ranks > *max_ranks)
    return fmt::format("{}, but --max-ranks {}", counted(ranks, "rank"), *max_ranks);
  if (!max_ranks && ranks > places)
    return fmt::format("{} rank{}, but {} {}{}", ranks, ranks == 1 ? "" : "s", places,
                       on_gpus ? "GPU" : "core", places == 1 ? "" : "s");
  if (on_gpus && !machine.gpus.empty() && bytes > machine.gpu_bytes)
    return fmt::format("{} a rank, but GPUs of {}", size(bytes), size(machine.gpu_bytes));
  if (!on_gpus && bytes * ranks > machine.host_bytes)
    return fmt::format("{} in all, but {} of memory", size(bytes * ranks),
                       size(machine.host_bytes));
  return std::nullopt;
}

std::optional<std::vector<std::string>> GpuPool::take(int count) {
  if (free_.size() < static_cast<std::size_t>(count)) return std::nullopt;
  const std::vector<std::string> taken(free_.begin(), free_.begin() + count);
  free_.erase(free_.begin(), free_.begin() + count);
  return taken;
}

void GpuPool::give_back(const std::vector<std::string>& gpus) {
  free_.insert(free_.end(), gpus.begin(), gpus.end());
}

namespace {

/// Whether the start of the run in `folder` that began `seconds` ago has written a checkpoint, from
/// which the next one resumes.
bool has_saved(const std::filesystem::path& folder, double seconds) {
  std::error_code unreadable;
  const std::filesystem::path metrics = folder / "metrics.jsonl";
  if (!std::filesystem::exists(metrics, unreadable)) return false;
  const std::string text = read_file(metrics);
  const auto last = report::last_start(text, std::nullopt);
  if (!last || last->began < unix_time() - seconds - 1.0) return false;
  const std::size_t start = text.rfind("{\"kind\":\"start\"");
  return text.find("\n{\"kind\":\"checkpoint\"", start) != std::string::npos;
}

/// In the child: becomes the program or ends with 127.
[[noreturn]] void become(const Command& command, std::vector<char*>& words, int output,
                         pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(1);  // the parent died before the line above
  ::setpgid(0, 0);
  for (const int number : {SIGUSR1, SIGTERM, SIGINT, SIGPIPE}) std::signal(number, SIG_DFL);
  for (const auto& [name, value] : command.environment) ::setenv(name.c_str(), value.c_str(), 1);
  ::dup2(::open("/dev/null", O_RDONLY), STDIN_FILENO);
  ::dup2(output, STDOUT_FILENO);
  ::dup2(output, STDERR_FILENO);
  ::execvp(words[0], words.data());
  const std::string message = fmt::format("{}: {}\n", command.words[0], std::strerror(errno));
  if (::write(STDERR_FILENO, message.data(), message.size()) < 0) ::_exit(126);
  ::_exit(127);
}

}  // namespace

Process::Process(const Command& command) {
  const int output =
      ::open(command.output.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (output < 0)
    throw IoError("cannot open '{}': {}", command.output.string(), std::strerror(errno));
  std::vector<char*> words;
  for (const std::string& word : command.words) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ == 0) become(command, words, output, parent);
  const int reason = errno;
  ::close(output);
  if (pid_ < 0) throw IoError("cannot start a process: {}", std::strerror(reason));
}

void Process::signal(int number) const { ::kill(pid_, number); }

std::optional<int> Process::ended() {
  int status = 0;
  if (::waitpid(pid_, &status, WNOHANG) != pid_) return std::nullopt;
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

namespace {

void say(const std::string& line) {
  std::fputs((line + "\n").c_str(), stdout);
  std::fflush(stdout);
}

/// What to show of a run's output from byte `begin` on: the program's last message, else the last
/// line of words. Launchers write theirs after it, and lines of dashes.
std::string last_message(const std::filesystem::path& output, std::uintmax_t begin) {
  std::ifstream file(output);
  file.seekg(static_cast<std::streamoff>(begin));
  std::string message, last;
  for (std::string line; std::getline(file, line);) {
    if (std::any_of(line.begin(), line.end(), [](unsigned char c) { return std::isalnum(c) != 0; }))
      last = line;
    if (line.starts_with("trireme-pretrain: ")) message = line;
  }
  return message.empty() ? last : message;
}

/// Open MPI 4's folder of sessions, on all hosts of a run, and on one: it refuses both together.
constexpr const char* kSessionFolder = "OMPI_MCA_orte_tmpdir_base";
constexpr const char* kLocalSessionFolder = "OMPI_MCA_orte_local_tmpdir_base";

/// The loop: starts, waits, stops.
class Runner {
 public:
  Runner(const PlannedSweep& sweep, const Machine& machine, const Launch& launch, int jobs)
      : sweep_(sweep), machine_(machine), launch_(launch), jobs_(jobs), gpus_(machine.gpus) {
    for (std::size_t i = 0; i < sweep.runs.size(); ++i) {
      const Status status = status_of(sweep, i);
      if (is_to_do(status.state)) waiting_.push_back(i);
      if (status.state == State::too_large)
        say(fmt::format("{}: too large: {}", sweep.runs[i].name(), status.note));
    }
  }

  void run() {
    while (!running_.empty() || (!waiting_.empty() && !stopping_)) {
      if (stop_signal() != 0 && !stopping_) stop();
      if (!stopping_) start_runs();
      reap();
      if (!running_.empty() || !waiting_.empty())
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  }

 private:
  struct Running {
    std::size_t index;
    Process process;
    std::vector<std::string> gpus;
    std::optional<TemporaryFolder> sessions;
    std::uintmax_t output_begin;  // earlier starts have written, too
    Stopwatch watch;
  };

  void stop() {
    stopping_ = true;
    say(fmt::format("stopping: waiting for {} run{} to save", running_.size(),
                    running_.size() == 1 ? "" : "s"));
    for (const Running& each : running_) each.process.signal(SIGUSR1);
  }

  void start_runs() {
    for (auto next = waiting_.begin(); next != waiting_.end();) {
      if (running_.size() == static_cast<std::size_t>(jobs_)) return;
      const PlannedRun& run = sweep_.runs[*next];
      if (is_in_use(run.folder)) {
        // A run of a sweep that was killed is about to end, too.
        if (said_.insert(*next).second)
          say(fmt::format("{}: another process holds {}; waiting for it", run.name(),
                          run.folder.string()));
        ++next;
        continue;
      }
      if (!is_to_do(status_of(sweep_, *next).state)) {  // by the process that held the folder
        say(fmt::format("{}: finished by another process", run.name()));
        next = waiting_.erase(next);
        continue;
      }
      std::vector<std::string> gpus;
      if (run.need.on_gpus && run.need.ranks <= static_cast<int>(machine_.gpus.size())) {
        const auto taken = gpus_.take(run.need.ranks);
        if (!taken) return;  // smaller runs do not overtake: they could keep it waiting for ever
        gpus = *taken;
      }
      start(*next, gpus);
      next = waiting_.erase(next);
    }
  }

  void start(std::size_t index, const std::vector<std::string>& gpus) {
    const PlannedRun& run = sweep_.runs[index];
    std::filesystem::remove(exit_code_path(sweep_, run));
    std::optional<TemporaryFolder> sessions;
    // Otherwise all share one, which each mpirun removes when it ends and the folder is empty: one
    // that starts at that moment fails.
    if (std::getenv(kSessionFolder) == nullptr && std::getenv(kLocalSessionFolder) == nullptr)
      sessions.emplace("trireme-sweep");
    Command command{.words = run_words(sweep_, run, launch_),
                    .environment = environment_of(run, gpus, sessions),
                    .output = output_path(sweep_, run)};
    std::error_code none;
    const std::uintmax_t size = std::filesystem::file_size(command.output, none);
    running_.push_back({index, Process(command), gpus, std::move(sessions), none ? 0 : size, {}});
    if (!launch_.quiet) say(fmt::format("{}: started", run.name()));
  }

  /// Where mpirun keeps its session; GPUs, or a share of the cores where runs are concurrent.
  std::vector<std::pair<std::string, std::string>> environment_of(
      const PlannedRun& run, const std::vector<std::string>& gpus,
      const std::optional<TemporaryFolder>& sessions) const {
    std::vector<std::pair<std::string, std::string>> environment;
    if (sessions) environment.emplace_back(kSessionFolder, sessions->path().string());
    if (!gpus.empty()) {
      environment.emplace_back("CUDA_VISIBLE_DEVICES", fmt::format("{}", fmt::join(gpus, ",")));
    } else if (jobs_ > 1 && std::getenv("OMP_NUM_THREADS") == nullptr) {
      const int threads = std::max(1, machine_.cores / (jobs_ * run.need.ranks));
      environment.emplace_back("OMP_NUM_THREADS", std::to_string(threads));
    }
    return environment;
  }

  void reap() {
    for (auto each = running_.begin(); each != running_.end();) {
      const auto code = each->process.ended();
      if (!code) {
        ++each;
        continue;
      }
      if (*code == static_cast<int>(ExitCode::io) && is_in_use(sweep_.runs[each->index].folder))
        waiting_.push_back(each->index);  // a run of a killed sweep took the folder first
      else
        conclude(*each, *code);
      gpus_.give_back(each->gpus);
      each = running_.erase(each);
    }
  }

  void conclude(const Running& ended, int code) {
    const PlannedRun& run = sweep_.runs[ended.index];
    // A run that was still starting up when it was told to stop is killed by the signal: no
    // failure.
    const bool killed = code > 128 && has_saved(run.folder, ended.watch.seconds());
    const bool stopped =
        code == static_cast<int>(ExitCode::stopped_early) || (stopping_ && code > 128) || killed;
    if (!stopped) write_file_atomically(exit_code_path(sweep_, run), fmt::format("{}\n", code));
    const std::string time = human_duration(ended.watch.seconds());
    const std::filesystem::path output = output_path(sweep_, run);
    const auto problem = [&] {
      const std::string message = last_message(output, ended.output_begin);
      return fmt::format("{}{}see {}", message, message.empty() ? "" : "; ", output.string());
    };
    ++ended_;
    if (code == 0 && !launch_.quiet)
      say(fmt::format("{}: finished in {}{}", run.name(), time, progress()));
    else if (code == static_cast<int>(ExitCode::diverged))
      say(fmt::format("{}: diverged after {}: {}", run.name(), time, problem()));
    else if (stopped)
      say(fmt::format("{}: stopped early after {}{}", run.name(), time,
                      killed ? fmt::format(" (a rank was killed: exit code {})", code) : ""));
    else if (code != 0)
      say(fmt::format("{}: failed with exit code {} after {}: {}", run.name(), code, time,
                      problem()));
  }

  /// ", 3 of 8, ETA 12m" after a run; the time that is left is as long as that for each one so far.
  std::string progress() const {
    const std::size_t left = waiting_.size() + running_.size() - 1;  // without the run that ended
    const double each = watch_.seconds() / static_cast<double>(ended_);
    return fmt::format(", {} of {}{}", ended_, ended_ + left,
                       left > 0 ? ", ETA " + human_duration(each * static_cast<double>(left)) : "");
  }

  const PlannedSweep& sweep_;
  const Machine& machine_;
  const Launch& launch_;
  const int jobs_;
  GpuPool gpus_;
  std::vector<std::size_t> waiting_;
  std::vector<Running> running_;
  std::set<std::size_t> said_;
  bool stopping_ = false;
  std::size_t ended_ = 0;
  Stopwatch watch_;
};

}  // namespace

ExitCode run_locally(const PlannedSweep& sweep, const Machine& machine, const Launch& launch,
                     int jobs) {
  catch_stop_signals();
  std::filesystem::create_directories(sweep.own_folder());
  write_file_atomically(deck_copy(sweep), sweep.deck_text);
  Runner(sweep, machine, launch, jobs).run();

  const std::vector<Status> statuses = all_statuses(sweep);
  say(count_line(statuses));
  const auto any = [&](auto... states) {
    return std::any_of(statuses.begin(), statuses.end(),
                       [&](const Status& status) { return ((status.state == states) || ...); });
  };
  if (any(State::failed, State::diverged) && stop_signal() == 0) return ExitCode::failure;
  return std::any_of(statuses.begin(), statuses.end(),
                     [](const Status& status) { return is_to_do(status.state); })
             ? ExitCode::stopped_early
             : ExitCode::success;
}

}  // namespace trireme::sweep
