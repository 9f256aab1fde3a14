#include "train/verify/spike.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <sstream>

#include "core/error.hpp"

namespace trireme::train {
namespace {

/// "loss 9.1 is 7.2 standard deviations above the mean 3.2 of 128 iterations", or nothing.
std::optional<std::string> exceeds(const char* name, double value,
                                   const std::vector<double>& before, double above) {
  const auto count = static_cast<double>(before.size());
  const double mean = std::accumulate(before.begin(), before.end(), 0.0) / count;
  double squares = 0.0;
  for (const double each : before) squares += (each - mean) * (each - mean);
  const double deviation = std::sqrt(squares / count);
  if (!(value > mean + above * deviation)) return std::nullopt;
  return fmt::format(
      "{} {:.6g} is {:.3g} standard deviations above the mean {:.6g} of {} iterations", name, value,
      (value - mean) / deviation, mean, before.size());
}

}  // namespace

void SpikeHistory::add(double loss, double norm, std::int64_t window) {
  for (auto* values : {&losses, &norms}) {
    values->push_back(values == &losses ? loss : norm);
    const auto extra = std::max<std::int64_t>(std::ssize(*values) - window, 0);
    values->erase(values->begin(), values->begin() + extra);
  }
}

std::string SpikeHistory::text() const {
  std::string text = fmt::format("{} {}", skipped, losses.size());
  for (const auto* values : {&losses, &norms})
    for (const double value : *values) text += fmt::format(" {}", value);  // round trips exactly
  return text;
}

SpikeHistory SpikeHistory::from(const std::string& text) {
  std::istringstream words(text);
  SpikeHistory history;
  std::size_t count = 0;
  words >> history.skipped >> count;
  if (count > text.size()) words.setstate(std::ios::failbit);
  for (auto* values : {&history.losses, &history.norms}) {
    values->resize(words ? count : 0);
    for (double& value : *values) words >> value;
  }
  if (!words) throw DataError("'{}' is no history of train.spike", text);
  return history;
}

std::optional<std::string> find_spike(const deck::Spike& rule, const SpikeHistory& history,
                                      double loss, double norm) {
  if (!rule.above || std::ssize(history.losses) < *rule.window || history.skipped >= *rule.limit)
    return std::nullopt;
  if (auto problem = exceeds("loss", loss, history.losses, *rule.above)) return problem;
  return exceeds("gradient norm", norm, history.norms, *rule.above);
}

}  // namespace trireme::train
