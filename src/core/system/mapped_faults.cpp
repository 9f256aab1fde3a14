#include "core/system/mapped_faults.hpp"

#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <mutex>

#include "core/error.hpp"

namespace trireme {
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
