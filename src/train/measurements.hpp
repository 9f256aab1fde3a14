// What a run measures about itself, over its ranks.
#pragma once

#include <span>

#include "comm/mpi/groups.hpp"
#include "device/timers.hpp"
#include "report/metrics.hpp"

namespace trireme::train {

/// The mean time of each of `phases` over `iterations`, taken from the timers of every rank: the
/// smallest and the largest among the ranks that ran it. Phases that no rank ran are left out; of
/// passes each rank's sum is told, too. The event's iteration is left to the caller. Collective
/// over `world`.
report::TimersEvent timers_event(device::Timers& timers, std::span<const device::Phase> phases,
                                 double iterations, comm::Communicator& world);

/// The memory that the ranks use now. Collective over the world; the iteration and the planned
/// bytes are left to the caller.
report::MemoryEvent memory_in_use(const device::Backend& backend, const comm::Groups& groups);

}  // namespace trireme::train
