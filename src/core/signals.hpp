// Signals that ask a run to stop cleanly.
#pragma once

namespace trireme {

/// Installs handlers for SIGUSR1, SIGTERM and SIGINT that only set a flag. A SIGTERM or SIGINT that
/// comes after any of them ends the process at once.
void catch_stop_signals();

/// The number of the newest stop signal received so far, 0 when none. The caller makes all ranks
/// agree.
int stop_signal();

}  // namespace trireme
