// Signals that ask a run to stop cleanly.
#pragma once

namespace trireme {

/// Installs handlers for SIGUSR1, SIGTERM, SIGINT and SIGHUP that only set a flag. A SIGTERM,
/// SIGINT or SIGHUP that comes more than a second after the first of them ends the process
/// immediately. A SIGHUP that the process was started to ignore (nohup) stays ignored.
void catch_stop_signals();

/// The number of the newest stop signal received so far, 0 when none. The caller makes all ranks
/// agree.
int stop_signal();

}  // namespace trireme
