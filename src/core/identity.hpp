// Which process this is, for the messages of libraries that do not know it.
#pragma once

#include <string>

namespace trireme {

/// Sets this process's rank among all ranks; called once, when MPI has started.
void set_process_rank(int rank);

/// "rank 3 on node07", or "node07" while there are no ranks.
std::string process_identity();

/// This host's name.
std::string host_name();

}  // namespace trireme
