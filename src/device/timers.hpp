// Where the time of an iteration goes.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/clock.hpp"
#include "device/backend.hpp"

namespace trireme::device {

// ---- named ranges of the work that this thread asks a device for: one set of names for NVTX
// (Nsight), the timers and the timeline

/// What a range is about; a negative number does not apply. `name` lives as long as the program.
struct RangeInfo {
  const char* name;
  int micro_batch = -1;
  int chunk = -1;
};

/// Learns of ranges, which are nested.
class RangeListener {
 public:
  virtual ~RangeListener() = default;
  virtual void begin(const RangeInfo& range) = 0;
  virtual void end() = 0;
};

/// The listeners: NVTX in a program with the CUDA backend, and a timeline that records. Null: there
/// is none.
enum class RangeListeners { nvtx, timeline };
inline std::array<RangeListener*, 2> range_listeners{};
inline RangeListener*& range_listener(RangeListeners which) {
  return range_listeners[static_cast<std::size_t>(which)];
}

/// A range for the length of a scope. Of the main thread only.
class NamedRange {
 public:
  explicit NamedRange(const RangeInfo& range) {
    for (RangeListener* listener : range_listeners)
      if (listener) listener->begin(range);
  }
  ~NamedRange() {
    for (RangeListener* listener : range_listeners)
      if (listener) listener->end();
  }
  NamedRange(const NamedRange&) = delete;
  NamedRange& operator=(const NamedRange&) = delete;
};

// ---- timers

/// The parts of a run that are timed. Parts may lie within others.
enum class Phase {
  forward_backward,  ///< all passes of an iteration, waiting for other stages included
  forward,           ///< forward passes, the making of their micro-batches included
  backward,
  waiting,     ///< of the host for other ranks, within forward and backward passes
  batch,       ///< making micro-batches of token ids; work of the host
  grads_sync,  ///< sums of gradients over ranks, as far as passes do not hide them
  gradient_norm,
  update,
  optimizer,  ///< gradient_norm, update and what is between them
  evaluate,
  save,  ///< writing a checkpoint; work of the host
};
inline constexpr std::size_t kPhases = static_cast<std::size_t>(Phase::save) + 1;

/// The name of Megatron-LM's timer for it, by which logs are read: "forward-compute"; it ends in a
/// zero byte.
std::string_view name_of(Phase phase);

/// A second stream, next to the compute stream, on which the ends of other streams' work are
/// recorded without holding any of them up.
class SideStream {
 public:
  virtual ~SideStream() = default;
  virtual CUstream_st* stream() const = 0;
  /// An event after what the stream was made to wait for.
  virtual std::unique_ptr<Event> record() = 0;
};

/// One of `backend`, which must outlive it and its events; null where the backend has no streams.
std::unique_ptr<SideStream> make_side_stream(const Backend& backend);

/// Adds up the time of phases on one rank. On a GPU that is the time between two points of the
/// compute stream, read after the work is done, so that timing makes no rank wait; phases that are
/// work of the host are timed on the host.
class Timers {
 public:
  /// `backend` must outlive this.
  explicit Timers(Backend& backend) : backend_(backend) {}

  /// A phase begins and ends; it does not lie within itself.
  void begin(Phase phase);
  void end(Phase phase);

  /// Adds `ms` that were measured elsewhere to the time of `phase`.
  void add(Phase phase, double ms);

  /// Called once an iteration: reads the marks that were set before the call before this one, whose
  /// work is done by now, so that their number stays bounded.
  void settle();

  /// Milliseconds of `phase` since it was last taken; nothing when it did not run. Waits for the
  /// backend.
  std::optional<double> take(Phase phase);

 private:
  struct Interval {
    Phase phase{};
    std::unique_ptr<Event> begin, end;
  };
  struct Total {
    double ms = 0.0;
    bool ran = false;
  };

  std::unique_ptr<Event> record_event();
  /// Adds the first `count` intervals that are not read yet.
  void read(std::size_t count);

  Backend& backend_;
  std::array<Total, kPhases> totals_{};
  std::array<std::unique_ptr<Event>, kPhases> open_;  ///< begin of phases that run
  std::array<Stopwatch, kPhases> host_open_;
  std::vector<Interval> unread_;
  std::size_t settled_ = 0;  ///< of unread_: there at the last settle()
  std::vector<std::unique_ptr<Event>> spare_;
};

/// Calls `work` and returns what it returns; times it where there are timers.
template <typename Work>
auto measured(Timers* timers, Phase phase, Work&& work) {
  if (timers == nullptr) return std::forward<Work>(work)();
  timers->begin(phase);
  if constexpr (std::is_void_v<decltype(work())>) {
    std::forward<Work>(work)();
    timers->end(phase);
  } else {
    auto result = std::forward<Work>(work)();
    timers->end(phase);
    return result;
  }
}

/// The same as a range with the phase's name.
template <typename Work>
auto timed(Timers* timers, Phase phase, Work&& work) {
  const NamedRange range({name_of(phase).data()});
  return measured(timers, phase, std::forward<Work>(work));
}

}  // namespace trireme::device
