#include "comm/mpi/clock_offset.hpp"

#include <cmath>

namespace trireme::comm {
namespace {

constexpr int kTag = 8;
// A rank asks again while the answers are slower than usual, as on hosts with other work.
constexpr int kMinQuestions = 8, kMaxQuestions = 200;
constexpr double kGoodErrorMs = 0.02;
constexpr double kNoMoreQuestions = -1.0;

ClockOffset ask(MpiCommunicator& group, const std::function<double()>& clock_ms) {
  ClockOffset best{.error_ms = HUGE_VAL};
  double word = 0;
  for (int i = 0; i < kMaxQuestions; ++i) {
    if (i >= kMinQuestions && best.error_ms <= kGoodErrorMs) break;
    const double before = clock_ms();
    group.send(&word, sizeof word, 0, kTag)->wait();
    group.receive(&word, sizeof word, 0, kTag)->wait();
    const double after = clock_ms();
    if ((after - before) / 2 < best.error_ms)
      best = {.ms = word - (before + after) / 2, .error_ms = (after - before) / 2};
    word = 0;
  }
  word = kNoMoreQuestions;
  group.send(&word, sizeof word, 0, kTag)->wait();
  return best;
}

void answer(MpiCommunicator& group, int peer, const std::function<double()>& clock_ms) {
  while (true) {
    double word = 0;
    group.receive(&word, sizeof word, peer, kTag)->wait();
    if (word == kNoMoreQuestions) return;
    word = clock_ms();
    group.send(&word, sizeof word, peer, kTag)->wait();
  }
}

}  // namespace

ClockOffset clock_offset(MpiCommunicator& group, const std::function<double()>& clock_ms) {
  if (group.rank() > 0) return ask(group, clock_ms);
  for (int peer = 1; peer < group.size(); ++peer) answer(group, peer, clock_ms);
  return {};
}

}  // namespace trireme::comm
