// The clocks of a group's ranks.
#pragma once

#include <functional>

#include "comm/mpi/mpi_communicator.hpp"

namespace trireme::comm {

/// What to add to this rank's clock for the first rank's, and the most by which that can be wrong.
struct ClockOffset {
  double ms = 0, error_ms = 0;
};

/// Compares `clock_ms`, a clock in milliseconds that never jumps, with the first rank's as the
/// Network Time Protocol does: of several questions to that rank counts the one with the quickest
/// answer, and half its round trip bounds the error. Collective over `group`; the first rank
/// answers the others in turn.
ClockOffset clock_offset(MpiCommunicator& group, const std::function<double()>& clock_ms);

}  // namespace trireme::comm
