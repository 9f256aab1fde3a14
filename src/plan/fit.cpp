#include "plan/fit.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "core/error.hpp"
#include "core/files.hpp"
#include "plan/remedies.hpp"

namespace trireme::plan {
namespace {

std::string size_text(std::size_t bytes) { return human_bytes(static_cast<double>(bytes)); }

std::size_t stage_of_largest(const RunPlan& plan) {
  return static_cast<std::size_t>(&plan.largest() - plan.stages.data());
}

/// "the rank with the highest peak memory (stage 1 of 2) needs 181.0 GiB"
std::string needs_of_rank(const RunPlan& plan) {
  const std::string bytes = size_text(plan.largest().memory.total());
  if (plan.stages.size() == 1) return fmt::format("each rank needs {}", bytes);
  return fmt::format("the rank with the highest peak memory, of stage {}, needs {}",
                     stage_of_largest(plan), bytes);
}

std::string needs_of_host(std::int64_t ranks, std::size_t bytes) {
  return ranks == 1 ? fmt::format("the rank needs {}", size_text(bytes))
                    : fmt::format("{} ranks need {} together", ranks, size_text(bytes));
}

}  // namespace

std::size_t bytes_of_ranks(const RunPlan& plan, std::int64_t ranks) {
  std::vector<std::size_t> stages;
  for (const StagePlan& stage : plan.stages) stages.push_back(stage.memory.total());
  std::ranges::sort(stages, std::greater<>());
  const std::int64_t of_stage = std::int64_t{plan.layout.tensor} * plan.layout.data;
  std::size_t sum = 0;
  for (const std::size_t bytes : stages) {
    const std::int64_t count = std::min(ranks, of_stage);
    sum += static_cast<std::size_t>(count) * bytes;
    ranks -= count;
  }
  return sum;
}

std::string largest_purpose(const MemoryPlan& memory) {
  const std::pair<const char*, std::size_t> purposes[] = {
      {"the weights take", memory.weights},
      {"the gradients take", memory.gradients},
      {"the optimizer state takes", memory.optimizer},
      {"the activations take", memory.activations},
      {"the workspace takes", memory.workspace},
      {"the transfer buffers take", memory.communication},
      {"the libraries take", memory.libraries}};
  const auto* largest = std::max_element(std::begin(purposes), std::end(purposes),
                                         [](auto& a, auto& b) { return a.second < b.second; });
  return fmt::format("{} {}", largest->first, size_text(largest->second));
}

Verdict judge(const deck::Deck& deck, std::int64_t vocab, const RunPlan& plan,
              const std::optional<MemoryThere>& there, std::optional<std::int64_t> ranks_per_host) {
  const bool on_gpus = deck.run.device == deck::Device::cuda;
  const MemoryPlan& largest = plan.largest().memory;
  const std::int64_t sharing = ranks_per_host.value_or(plan.layout.ranks());
  const std::size_t needed = on_gpus ? largest.total() : bytes_of_ranks(plan, sharing);
  const std::string needs = on_gpus ? needs_of_rank(plan) : needs_of_host(sharing, needed);
  if (!there)
    return {{},
            fmt::format("{}; the memory of the {} is not known here: --memory SIZE compares", needs,
                        on_gpus ? "GPUs" : "hosts")};
  const std::string both =
      fmt::format("{} of the {} {}", needs, size_text(there->bytes), there->what);
  if (needed <= there->bytes) return {true, "fits: " + both};
  // What one rank may take of it beside the libraries, which no change makes smaller.
  const std::size_t share =
      on_gpus ? there->bytes : there->bytes / static_cast<std::size_t>(sharing);
  const std::size_t free = share > largest.libraries ? share - largest.libraries : 0;
  return {false, fmt::format("does not fit: {}; {}; {}", both, largest_purpose(largest),
                             to_text(remedies(deck, vocab, free)))};
}

std::size_t parse_memory(const std::string& option, const std::string& text) {
  double number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  std::string unit(stop, end);
  unit.erase(0, std::min(unit.find_first_not_of(' '), unit.size()));
  const bool decimal = unit.size() == 2 && unit[1] == 'B';
  const bool binary = unit.size() == 1 || (unit.size() == 3 && unit.ends_with("iB"));
  const std::size_t power =
      unit.empty() || unit == "B" ? 0 : std::string_view("KMGT").find(unit[0]) + 1;
  const bool known =
      unit.empty() || unit == "B" || (power >= 1 && power <= 4 && (decimal || binary));
  const double bytes = known ? number * std::pow(decimal ? 1000.0 : 1024.0, power) : 0;
  if (error != std::errc() || !known || !(bytes >= 1) ||
      bytes > static_cast<double>(std::numeric_limits<std::int64_t>::max()))
    throw UsageError("{} {}: expected a size, such as 80GiB, 80GB or 81920M", option, text);
  return static_cast<std::size_t>(bytes);
}

}  // namespace trireme::plan
