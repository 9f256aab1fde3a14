// Names the file where reading a mapped one fails: the kernel tells of it by SIGBUS alone.
#pragma once

#include <cstddef>
#include <string>

namespace trireme {

/// From now on a SIGBUS at an address of [`begin`, `begin + size`) writes one message that names
/// `path` to standard error and ends the process with the exit code of an IoError; elsewhere it
/// does what it did before. Mappings beyond the first 1024 at a time are not known to it.
void add_mapping(const void* begin, std::size_t size, const std::string& path);

/// Forgets the mapping that begins at `begin`.
void remove_mapping(const void* begin);

}  // namespace trireme
