#include "core/system/memory.hpp"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>

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
/// nobody used lately make room.
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

}  // namespace trireme
