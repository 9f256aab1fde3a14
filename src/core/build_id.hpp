// Which build of the program this process runs.
#pragma once

#include <string>

namespace trireme {

/// The running program's build id (the linker's digest of what it linked) in hexadecimal; equal for
/// copies of one build alone. "" when it was linked without one.
std::string build_id();

/// The running program's path; "" when the system does not tell.
std::string program_path();

}  // namespace trireme
