// The progress of long work: percentage, rate and time left, on standard error.
#pragma once

#include <cstdio>
#include <functional>
#include <string>

namespace trireme {

/// A progress meter. On a terminal it shows one line after two seconds and rewrites it; elsewhere
/// it prints a line every 30 seconds. Not thread-safe.
class Progress {
 public:
  /// `what` is the work ("tokenizing"), `unit` what is counted ("document"; "B" for bytes, shown as
  /// MB), `total` how many there are, 0 when unknown. `out` is where lines go, null for nowhere
  /// (--quiet). `clock` returns seconds since the start of the work; a real clock by default.
  Progress(std::string what, std::string unit, double total, std::FILE* out = stderr,
           std::function<double()> clock = {});
  /// Removes the line from a terminal.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// `done` of the total are done.
  void update(double done);

 private:
  const std::string what_, unit_;
  const double total_;
  std::FILE* const out_;
  const std::function<double()> clock_;
  const bool terminal_;
  double next_;         ///< seconds at which the next line is due
  bool shown_ = false;  ///< a line is on the terminal
};

/// "tokenizing: 43.1 % | 12.3M of 28.5M documents | 1.2M documents/s | ETA 12s"; without a total,
/// or beyond it, "tokenizing: 12.3M documents | 1.2M documents/s".
std::string progress_line(const std::string& what, const std::string& unit, double done,
                          double total, double seconds);

}  // namespace trireme
