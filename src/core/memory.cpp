#include "core/memory.hpp"

#include <unistd.h>

#include <fstream>
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

}  // namespace trireme
