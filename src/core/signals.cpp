#include "core/signals.hpp"

#include <csignal>
#include <initializer_list>

namespace trireme {
namespace {

volatile std::sig_atomic_t received = 0;

void remember(int signal) {
  if (received != 0 && signal != SIGUSR1) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  }
  received = signal;
}

}  // namespace

void catch_stop_signals() {
  for (int signal : {SIGUSR1, SIGTERM, SIGINT}) std::signal(signal, remember);
}

int stop_signal() { return received; }

}  // namespace trireme
