// A GPU for every rank of a test program.
#pragma once

#include <string>

namespace trireme {

/// Selects the GPU whose number is this rank's among those of its node. Returns what is missing, in
/// words and the same on all ranks, when a rank got none. Collective over all ranks.
std::string take_gpu_of_rank();

}  // namespace trireme
