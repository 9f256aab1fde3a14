// Wall-clock time, and the median of measured times.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "core/error.hpp"

namespace trireme {

/// Measures elapsed time since its construction.
class Stopwatch {
 public:
  /// Seconds passed so far, less what was excluded.
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  /// Seconds by which this one began later than `earlier`.
  double seconds_after(const Stopwatch& earlier) const {
    return std::chrono::duration<double>(start_ - earlier.start_).count();
  }
  /// Leaves `seconds` that have passed out of the measurement.
  void exclude(double seconds) {
    start_ += std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

/// Seconds since 1970, with a fraction.
double unix_time();

/// "2023-06-14 16:08:12": seconds since 1970 as a date and time of this machine's time zone.
std::string local_date_time(double unix_seconds);

/// "1h07m", "3m20s", "12s": a duration for people.
std::string human_duration(double seconds);

/// Seconds in "HH:MM:SS", "MM:SS" or "D-HH:MM:SS" (Slurm's forms); throws UsageError when `text` is
/// none of them.
double parse_duration(const std::string& text);

/// The median of `values`: of an even number the lower of the two in the middle, so that it is
/// always one of them. Throws InternalError when there are none.
template <typename T>
T median(std::vector<T> values) {
  TRIREME_CHECK(!values.empty(), "the median of nothing");
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace trireme
