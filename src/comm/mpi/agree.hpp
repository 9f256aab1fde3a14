// Steps that fail on one rank and must stop all of them.
#pragma once

#include <functional>

#include "comm/mpi/mpi_communicator.hpp"

namespace trireme::comm {

/// Runs `step` on every rank. When it threw on some, throws on all of them the error of the first
/// of those ranks, as the class of its exit code (DataError, IoError, DeckError, UsageError, else
/// InternalError). `step` must end on every rank whatever happens on the others. Collective.
void agree(MpiCommunicator& ranks, const std::function<void()>& step);

}  // namespace trireme::comm
