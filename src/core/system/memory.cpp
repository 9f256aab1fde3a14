#include "core/system/memory.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <mutex>
#include <optional>
#include <string>

#include "core/error.hpp"

namespace trireme {

ProcessMemory process_memory() {
  ProcessMemory memory;
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == "VmRSS:") status >> memory.resident;
    if (word == "VmHWM:") status >> memory.peak;
    if (word == "VmSize:") status >> memory.address_space;
    if (word == "VmPeak:") status >> memory.peak_address_space;
  }
  for (std::int64_t* figure :
       {&memory.resident, &memory.peak, &memory.address_space, &memory.peak_address_space})
    *figure *= 1024;
  return memory;
}

std::int64_t host_memory() {
  return std::int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE);
}

namespace {

/// The number after `key` in a file of lines "key number"; nothing when it is not there.
std::optional<std::int64_t> number_in(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    std::int64_t number = 0;
    if (word == key && file >> number) return number;
  }
  return std::nullopt;
}

/// The number that a file begins with; nothing for "max".
std::optional<std::int64_t> number_of(const std::string& path) {
  std::ifstream file(path);
  std::int64_t number = 0;
  return file >> number ? std::optional(number) : std::nullopt;
}

/// What the control group in `folder` leaves; nothing when it has no limit. Pages of files that
/// were not used lately make room.
std::optional<std::int64_t> left_in_group(const std::string& folder) {
  const auto limit = number_of(folder + "/memory.max");
  const auto used = number_of(folder + "/memory.current");
  if (!limit || !used) return std::nullopt;
  const std::int64_t cached = number_in(folder + "/memory.stat", "inactive_file").value_or(0);
  return std::max<std::int64_t>(0, *limit - *used + cached);
}

}  // namespace

std::int64_t available_memory(const std::string& root) {
  const auto kibibytes = number_in(root + "/proc/meminfo", "MemAvailable:");
  if (!kibibytes) return 0;
  std::int64_t available = *kibibytes * 1024;
  // "0::/user.slice/job": a limit of any group above holds, too.
  std::string path;
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);)
    if (line.starts_with("0::/")) path = line.substr(3);
  while (true) {
    while (path.ends_with('/')) path.pop_back();
    if (const auto left = left_in_group(root + "/sys/fs/cgroup" + path))
      available = std::min(available, *left);
    if (path.empty()) return available;
    path.erase(path.rfind('/'));
  }
}

// ---------------------------------------------------------------------------- mapped files

namespace {

// Three index files of each dataset of each split, and the indices of their blends.
constexpr int kMaxMappings = 1024;
constexpr std::size_t kMaxMessage = 4352;  // of a path and the words around it

/// A mapping that the handler knows. `begin` is set last and cleared first; the text is never
/// freed while the entry is in use.
struct Mapping {
  std::atomic<std::uintptr_t> begin = 0;
  std::atomic<std::uintptr_t> end = 0;
  std::array<char, kMaxMessage> message = {};
};

std::array<Mapping*, kMaxMappings> mappings = {};  // made when first needed
std::atomic<int> num_mappings = 0;
std::mutex adding;
struct sigaction before = {};

// Only what POSIX allows in a signal handler.
void on_bus_error(int signal, siginfo_t* info, void* context) {
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  for (int i = 0; i < num_mappings.load(); ++i) {
    const std::uintptr_t begin = mappings[i]->begin.load();
    if (begin == 0 || address < begin || address >= mappings[i]->end.load()) continue;
    const char* text = mappings[i]->message.data();
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text, std::strlen(text));
    ::_exit(static_cast<int>(ExitCode::io));
  }
  if ((before.sa_flags & SA_SIGINFO) != 0 && before.sa_sigaction) {
    before.sa_sigaction(signal, info, context);
  } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    before.sa_handler(signal);
  } else {
    // Pending until the handler returns: then the process ends as without a handler.
    std::signal(signal, SIG_DFL);
    ::raise(signal);
  }
}

/// MPI, too, takes the signal when it starts: the handler is put before that of today.
void install() {
  struct sigaction current = {};
  ::sigaction(SIGBUS, nullptr, &current);
  if ((current.sa_flags & SA_SIGINFO) != 0 && current.sa_sigaction == on_bus_error) return;
  before = current;
  struct sigaction action = {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGBUS, &action, nullptr);
}

}  // namespace

void add_mapping(const void* begin, std::size_t size, const std::string& path) {
  const std::lock_guard lock(adding);
  install();
  int entry = 0;
  while (entry < num_mappings && mappings[entry]->begin != 0) ++entry;
  if (entry == kMaxMappings) return;
  if (entry == num_mappings) {
    if (!mappings[entry]) mappings[entry] = new Mapping;  // lives as long as the handler
    ++num_mappings;
  }
  const std::string text = fmt::format(
      "cannot read '{}': it was cut, or its disk failed, while this program used it\n", path);
  Mapping& mapping = *mappings[entry];
  std::strncpy(mapping.message.data(), text.c_str(), kMaxMessage - 1);
  const auto address = reinterpret_cast<std::uintptr_t>(begin);
  mapping.end = address + size;
  mapping.begin = address;
}

void remove_mapping(const void* begin) {
  const std::lock_guard lock(adding);
  const auto address = reinterpret_cast<std::uintptr_t>(begin);
  for (int entry = 0; entry < num_mappings; ++entry)
    if (mappings[entry]->begin == address) mappings[entry]->begin = 0;
}

}  // namespace trireme
