#include "core/system/signals.hpp"

#include <csignal>
#include <ctime>
#include <initializer_list>

namespace trireme {
namespace {

/// Launchers and schedulers signal a process and its group: the same request comes twice.
constexpr double kOneRequest = 1.0;  // seconds

volatile std::sig_atomic_t received = 0;
timespec first{};  ///< when; written once, before `received`

double seconds_since(const timespec& start) {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);  // safe in a handler
  return static_cast<double>(now.tv_sec - start.tv_sec) +
         1e-9 * static_cast<double>(now.tv_nsec - start.tv_nsec);
}

void remember(int signal) {
  if (received == 0)
    ::clock_gettime(CLOCK_MONOTONIC, &first);
  else if (signal != SIGUSR1 && seconds_since(first) > kOneRequest) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  }
  received = signal;
}

}  // namespace

void catch_stop_signals() {
  struct sigaction action {};
  action.sa_handler = remember;
  action.sa_flags = SA_RESTART;
  const int stops[] = {SIGUSR1, SIGTERM, SIGINT, SIGHUP};
  // One after the other: a handler that another interrupts has not written down when it came.
  for (const int signal : stops) ::sigaddset(&action.sa_mask, signal);
  for (const int signal : stops) {
    struct sigaction before {};
    ::sigaction(signal, nullptr, &before);
    const bool by_nohup = signal == SIGHUP && before.sa_handler == SIG_IGN;
    if (!by_nohup) ::sigaction(signal, &action, nullptr);
  }
}

int stop_signal() { return received; }

}  // namespace trireme
