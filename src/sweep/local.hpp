// Runs a sweep on this machine, so many runs at a time.
#pragma once

#include "core/error.hpp"
#include "sweep/check.hpp"
#include "sweep/command.hpp"

namespace trireme::sweep {

/// Runs what is not finished and fits, in order, and prints a line when a run starts or ends. A run
/// of GPUs gets its own ones; a run whose folder another process holds waits for it. SIGUSR1,
/// SIGTERM and SIGINT are passed on as SIGUSR1, on which runs save and stop. Returns success when
/// all runs that fit are finished, failure when one failed, else stopped_early: call again. The
/// caller holds the sweep's folder.
ExitCode run_locally(const PlannedSweep& sweep, const Machine& machine, const Launch& launch,
                     int jobs);

}  // namespace trireme::sweep
