// What identifies this process and the build that it runs, in messages and between ranks.
#pragma once

#include <string>

namespace trireme {

/// Sets this process's rank among all ranks; called once, when MPI has started.
void set_process_rank(int rank);

/// "rank 3 on node07", or "node07" while there are no ranks.
std::string process_identity();

/// This host's name.
std::string host_name();

/// The build ids (the linker's digests of what it linked) of the running program and of the shared
/// libraries of Trireme that it loaded, in hexadecimal with '+' between them; equal for copies of
/// one build alone. "" when it was linked without one.
std::string build_id();

/// The running program's path; "" when the system does not tell.
std::string program_path();

}  // namespace trireme
