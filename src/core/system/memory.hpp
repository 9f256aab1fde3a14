// Memory of this process, as the system sees it; and the message when reading a mapped file fails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace trireme {

/// Bytes now and at their highest; 0 where the system does not tell (no /proc).
struct ProcessMemory {
  std::int64_t resident = 0;
  std::int64_t peak = 0;  ///< of resident
  /// Of addresses, whether memory stands behind them or not.
  std::int64_t address_space = 0;
  std::int64_t peak_address_space = 0;
};

/// Reads it from the system.
ProcessMemory process_memory();

/// Bytes of this host's memory.
std::int64_t host_memory();

/// Bytes that new processes can have without swapping: what the system says is available, and what
/// the control groups (version 2) of this process leave it. `root` stands before /proc and /sys.
/// 0 where the system does not tell.
std::int64_t available_memory(const std::string& root = "");

/// From now on a SIGBUS at an address of [`begin`, `begin + size`) writes one message that names
/// `path` to standard error and ends the process with the exit code of an IoError; elsewhere it
/// does what it did before. Mappings beyond the first 1024 at a time are not known to it.
void add_mapping(const void* begin, std::size_t size, const std::string& path);

/// Forgets the mapping that begins at `begin`.
void remove_mapping(const void* begin);

}  // namespace trireme
