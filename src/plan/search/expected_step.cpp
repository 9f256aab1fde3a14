#include "plan/search/expected_step.hpp"

#include <cmath>

#include "plan/search/layout_search.hpp"

namespace trireme::plan {
namespace {

// Steps that differ by less are as expected.
constexpr double kTolerance = 0.10;

}  // namespace

ExpectedStep expected_step(const deck::Deck& deck, std::int64_t vocab, const Cluster& cluster) {
  const NodeOrder order = all_nodes(cluster);
  ExpectedStep expected{.time = time_layout(deck, vocab, cluster, order).time, .calibrated = true};
  const NodeMap map(cluster, order);
  const std::int64_t ranks = deck.parallel.tensor * deck.parallel.pipeline * *deck.parallel.data;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const GpuKind& gpu = map.of(rank).gpu;
    expected.calibrated &= pass_times(gpu, model_shape(deck, vocab)).source != TimeSource::formula;
    if (expected.source.find(gpu.name) == std::string::npos)
      expected.source += (expected.source.empty() ? "the profile of " : ", ") + gpu.name;
  }
  if (!expected.calibrated) expected.source = "data sheets and formulas";
  return expected;
}

std::string describe(const ExpectedStep& expected) {
  const StepTime& time = expected.time;
  std::string text =
      fmt::format("expected   {:.1f} ms a step, by {}", 1e3 * time.total, expected.source);
  if (!expected.calibrated) return text + ": not calibrated, no measure of this run";
  text += fmt::format(": passes {:.1f}", 1e3 * time.pipeline());
  for (const auto& [name, seconds] :
       {std::pair{"reduction", time.data + time.embedding}, {"optimizer", time.optimizer}})
    if (seconds > 0) text += fmt::format(", {} {:.1f}", name, 1e3 * seconds);
  return text;
}

std::string compare(const ExpectedStep& expected, const MeasuredStep& measured) {
  const StepTime& time = expected.time;
  const double share = measured.ms / (1e3 * time.total) - 1;
  std::string text =
      fmt::format("expected   {:.1f} ms a step, measured {:.1f}: {:.1f} % {}", 1e3 * time.total,
                  measured.ms, 100 * std::abs(share), share > 0 ? "longer" : "shorter");
  if (std::abs(share) <= kTolerance) return text;
  if (measured.passes <= 0) return text + "; log.timers: true tells which part differs";
  const auto part = [&](const char* name, double seconds, double ms) {
    return std::pair{ms - 1e3 * seconds,
                     fmt::format("{} {:.1f} ms instead of {:.1f}", name, ms, 1e3 * seconds)};
  };
  const auto parts = {
      part("passes take", time.pipeline(), measured.passes),
      part("the reduction of gradients takes", time.data + time.embedding, measured.reduction),
      part("the optimizer takes", time.optimizer, measured.optimizer)};
  for (const auto& [difference, words] : parts)
    if (std::abs(difference) > 0.25 * std::abs(measured.ms - 1e3 * time.total))
      text += "; " + words;
  return text;
}

}  // namespace trireme::plan
