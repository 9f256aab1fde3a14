#include "core/memory.hpp"

#include <fstream>
#include <string>

namespace trireme {

ProcessMemory process_memory() {
  ProcessMemory memory;
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == "VmRSS:") status >> memory.resident;
    if (word == "VmHWM:") status >> memory.peak;
  }
  return {memory.resident * 1024, memory.peak * 1024};
}

}  // namespace trireme
