// Named ranges of the work that this thread asks a device for: one set of names for NVTX (Nsight),
// the timers and the timeline.
#pragma once

#include <array>

namespace trireme {

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

}  // namespace trireme
