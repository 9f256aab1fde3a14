#include "sweep/machine.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>

#include <sched.h>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "core/error.hpp"
#include "core/files.hpp"
#include "core/text.hpp"
#include "device/backend.hpp"

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

}  // namespace trireme::sweep
