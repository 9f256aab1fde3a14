#include "device/timers.hpp"

#include <algorithm>

namespace trireme::device {
namespace {

constexpr std::size_t index_of(Phase phase) { return static_cast<std::size_t>(phase); }

bool is_work_of_host(Phase phase) { return phase == Phase::batch || phase == Phase::save; }

}  // namespace

std::string_view name_of(Phase phase) {
  static constexpr std::string_view kNames[kPhases] = {
      "forward-backward", "forward-compute", "backward-compute",         "waiting-in-passes",
      "batch-generator",  "all-grads-sync",  "optimizer-clip-main-grad", "optimizer-inner-step",
      "optimizer",        "evaluate",        "save-checkpoint"};
  return kNames[index_of(phase)];
}

void Timers::begin(Phase phase) {
  if (is_work_of_host(phase))
    host_open_[index_of(phase)] = {};
  else
    open_[index_of(phase)] = record_event();
}

void Timers::end(Phase phase) {
  if (is_work_of_host(phase))
    add(phase, 1e3 * host_open_[index_of(phase)].seconds());
  else
    unread_.push_back({phase, std::move(open_[index_of(phase)]), record_event()});
}

void Timers::settle() {
  read(settled_);
  settled_ = unread_.size();
}

std::optional<double> Timers::take(Phase phase) {
  read(unread_.size());
  settled_ = 0;
  const Total total = std::exchange(totals_[index_of(phase)], {});
  return total.ran ? std::optional(total.ms) : std::nullopt;
}

std::unique_ptr<Event> Timers::record_event() {
  std::unique_ptr<Event> mark;
  if (spare_.empty()) {
    mark = backend_.make_event();
  } else {
    mark = std::move(spare_.back());
    spare_.pop_back();
  }
  mark->record();
  return mark;
}

void Timers::add(Phase phase, double ms) {
  Total& total = totals_[index_of(phase)];
  total.ms += ms;
  total.ran = true;
}

void Timers::read(std::size_t count) {
  const auto last = unread_.begin() + static_cast<std::ptrdiff_t>(count);
  for (auto interval = unread_.begin(); interval != last; ++interval) {
    add(interval->phase, interval->end->milliseconds_since(*interval->begin));
    spare_.push_back(std::move(interval->begin));
    spare_.push_back(std::move(interval->end));
  }
  unread_.erase(unread_.begin(), last);
}

}  // namespace trireme::device
