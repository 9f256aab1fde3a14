// Signals that ask a run to stop cleanly.
#pragma once

namespace trireme {

/// Installs handlers for SIGUSR1, SIGTERM and SIGINT that only set a flag. A second SIGTERM or
/// SIGINT ends the process at once.
void catch_stop_signals();

/// The number of the stop signal received so far, 0 when none. The caller makes all ranks agree.
int stop_signal();

/// "SIGUSR1" and so on.
const char* signal_name(int signal);

}  // namespace trireme
