#include "core/progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <utility>

#include "core/clock.hpp"

namespace trireme {
namespace {

// Seconds.
constexpr double kFirst = 2.0, kTerminalInterval = 0.2, kFileInterval = 30.0;

std::function<double()> real_clock() {
  return [watch = Stopwatch()] { return watch.seconds(); };
}

/// "12.3M documents", "512 documents", "1 document"; bytes as "12.3 MB".
std::string amount(double count, const std::string& unit) {
  if (unit == "B") return fmt::format("{:.1f} MB", 1e-6 * count);
  std::string number = fmt::format("{:.0f}", count);
  if (count >= 1e9)
    number = fmt::format("{:.1f}B", 1e-9 * count);
  else if (count >= 1e6)
    number = fmt::format("{:.1f}M", 1e-6 * count);
  else if (count >= 1e4)
    number = fmt::format("{:.1f}k", 1e-3 * count);
  else if (count > 0 && count < 9.95)
    number = fmt::format("{:.2g}", count);
  return fmt::format("{} {}{}", number, unit, number == "1" ? "" : "s");
}

}  // namespace

std::string progress_line(const std::string& what, const std::string& unit, double done,
                          double total, double seconds) {
  const double rate = seconds > 0 ? done / seconds : 0;
  const bool known = total > 0 && done <= total;
  std::string text = what + ": ";
  if (known) text += fmt::format("{:.1f} % | ", 100 * done / total);
  text += amount(done, unit);
  if (known) text += " of " + amount(total, unit);
  text += fmt::format(" | {}/s", amount(rate, unit));
  if (known && rate > 0) text += " | ETA " + human_duration((total - done) / rate);
  return text;
}

Progress::Progress(std::string what, std::string unit, double total, std::FILE* out,
                   std::function<double()> clock)
    : what_(std::move(what)),
      unit_(std::move(unit)),
      total_(total),
      out_(out),
      clock_(clock ? std::move(clock) : real_clock()),
      terminal_(out && ::isatty(::fileno(out)) == 1),
      next_(terminal_ ? kFirst : kFileInterval) {}

Progress::~Progress() {
  if (!shown_) return;
  std::fputs("\r\033[K", out_);
  std::fflush(out_);
}

void Progress::update(double done) {
  if (!out_) return;
  const double seconds = clock_();
  if (seconds < next_) return;
  next_ = seconds + (terminal_ ? kTerminalInterval : kFileInterval);
  const std::string line = progress_line(what_, unit_, done, total_, seconds);
  // A closed standard error does not stop the work.
  std::fputs((terminal_ ? "\r\033[K" + line : line + "\n").c_str(), out_);
  std::fflush(out_);
  shown_ = terminal_;
}

}  // namespace trireme
