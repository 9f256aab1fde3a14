#include "plan/run_plan.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>

#include "core/error.hpp"
#include "core/files.hpp"
#include "deck/load.hpp"

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

/// What a rank that has loaded the libraries will allocate.
MemoryPlan without_libraries(MemoryPlan memory) {
  memory.libraries = 0;
  return memory;
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
              const std::optional<AvailableMemory>& available,
              std::optional<std::int64_t> ranks_per_host) {
  const bool on_gpus = deck.run.device == deck::Device::cuda;
  const MemoryPlan& largest = plan.largest().memory;
  const std::int64_t sharing = ranks_per_host.value_or(plan.layout.ranks());
  const std::size_t needed = on_gpus ? largest.total() : bytes_of_ranks(plan, sharing);
  const std::string needs = on_gpus ? needs_of_rank(plan) : needs_of_host(sharing, needed);
  if (!available)
    return {{},
            fmt::format("{}; the memory of the {} is not known here: --memory SIZE compares", needs,
                        on_gpus ? "GPUs" : "hosts")};
  const std::string both =
      fmt::format("{} of the {} {}", needs, size_text(available->bytes), available->what);
  if (needed <= available->bytes) return {true, "fits: " + both};
  // The share of one rank without the libraries, which no change of the deck makes smaller.
  const std::size_t share =
      on_gpus ? available->bytes : available->bytes / static_cast<std::size_t>(sharing);
  const std::size_t free = share > largest.libraries ? share - largest.libraries : 0;
  return {false, fmt::format("does not fit: {}; {}; {}", both, largest_purpose(largest),
                             to_text(suggestions(deck, vocab, free)))};
}

std::string gpu_memory_problem(const deck::Deck& deck, std::int64_t vocab, const MemoryPlan& mine,
                               std::size_t free, std::size_t total) {
  const std::size_t needed = mine.total() - mine.libraries;
  if (needed <= free) return "";
  return fmt::format("the plan needs {} of GPU memory, {} of {} are free; {}; {}",
                     size_text(needed), size_text(free), size_text(total),
                     largest_purpose(without_libraries(mine)),
                     to_text(suggestions(deck, vocab, free)));
}

std::string host_memory_problem(const deck::Deck& deck, std::int64_t vocab, const RunPlan& plan,
                                std::size_t ranks, std::size_t needed, std::size_t available) {
  if (needed <= available) return "";
  return fmt::format("{} {} of memory, and this host has {} free; {}; {}",
                     ranks == 1 ? "the plan needs" : fmt::format("its {} ranks need", ranks),
                     size_text(needed), size_text(available),
                     largest_purpose(without_libraries(plan.largest().memory)),
                     to_text(suggestions(deck, vocab, available / ranks)));
}

std::size_t parse_memory(const std::string& option, const std::string& text) {
  double number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  std::string unit(stop, end);
  unit.erase(0, std::min(unit.find_first_not_of(' '), unit.size()));
  for (char& letter : unit)
    letter = static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
  if (unit.ends_with("IB")) unit[unit.size() - 2] = 'i';
  const bool decimal = unit.size() == 2 && unit[1] == 'B';
  const bool binary = unit.size() == 1 || (unit.size() == 3 && unit.ends_with("iB"));
  const std::size_t power =
      unit.empty() || unit == "B" ? 0 : std::string_view("KMGT").find(unit[0]) + 1;
  const bool known =
      unit.empty() || unit == "B" || (power >= 1 && power <= 4 && (decimal || binary));
  const double bytes = known ? number * std::pow(decimal ? 1000.0 : 1024.0, power) : 0;
  const double least = unit.empty() ? 1e6 : 1;  // a number alone that small lacks its unit
  if (error != std::errc() || !known || !(bytes >= least) ||
      bytes > static_cast<double>(std::numeric_limits<std::int64_t>::max()))
    throw UsageError("{} {}: expected a size, such as 80GiB, 80GB or 81920M", option, text);
  return static_cast<std::size_t>(bytes);
}

namespace {

using Overrides = std::vector<std::string>;

Overrides with(Overrides first, const Overrides& more) {
  first.insert(first.end(), more.begin(), more.end());
  return first;
}

/// Increasing recomputation, then fewer inputs kept for it.
std::vector<Overrides> recompute_steps(const deck::Recompute& recompute) {
  std::vector<Overrides> steps;
  Overrides full;
  if (recompute.granularity == deck::Granularity::none)
    steps.push_back({"recompute.granularity=selective"});
  if (recompute.granularity != deck::Granularity::full)
    full = {"recompute.granularity=full"};
  else if (recompute.method != deck::RecomputeMethod::uniform || recompute.layers != 1)
    full = {"recompute.method=uniform", "recompute.layers=1"};
  if (!full.empty()) steps.push_back(full);
  if (!recompute.partition) steps.push_back(with(full, {"recompute.partition=true"}));
  if (!recompute.offload) steps.push_back(with(full, {"recompute.offload=true"}));
  return steps;
}

std::vector<Overrides> zero_steps(const deck::Parallel& parallel) {
  std::vector<Overrides> steps;
  if (*parallel.data == 1) return steps;
  for (std::int64_t stage = parallel.zero + 1; stage <= 3; ++stage)
    steps.push_back({fmt::format("parallel.zero={}", stage)});
  return steps;
}

std::vector<Overrides> micro_batch_steps(const deck::Batch& batch) {
  std::vector<Overrides> steps;
  for (std::int64_t micro = batch.micro / 2; micro >= 1; micro /= 2)
    steps.push_back({fmt::format("batch.micro={}", micro)});
  return steps;
}

/// Changes of one deck.
class Changes {
 public:
  Changes(const deck::Deck& deck, std::int64_t vocab, std::size_t free)
      : text_(deck::print_deck(deck)), vocab_(vocab), free_(free) {}

  /// What the deck needs with `overrides`; nothing when its rules forbid them.
  std::optional<std::size_t> bytes(const Overrides& overrides) const {
    try {
      deck::Deck changed = deck::parse(text_, "deck", overrides, {.need_data = false});
      deck::resolve_world_size(changed, layout(changed));
      return needed_bytes(changed, vocab_);
    } catch (const DeckError&) {
      return std::nullopt;
    }
  }

  /// The first of `base` with one of `steps` that fits.
  std::optional<Suggestion> first(const std::vector<Overrides>& steps,
                                  const Overrides& base = {}) const {
    for (const Overrides& step : steps) {
      const Overrides overrides = with(base, step);
      const auto needed = bytes(overrides);
      if (needed && *needed <= free_) return Suggestion{overrides, *needed};
    }
    return std::nullopt;
  }

  /// The last of `steps` that the deck's rules allow.
  Overrides strongest(const std::vector<Overrides>& steps) const {
    for (auto step = steps.rbegin(); step != steps.rend(); ++step)
      if (bytes(*step)) return *step;
    return {};
  }

 private:
  static std::int64_t layout(const deck::Deck& deck) {
    return deck.parallel.tensor * deck.parallel.pipeline * *deck.parallel.data;
  }

  std::string text_;
  std::int64_t vocab_;
  std::size_t free_;
};

}  // namespace

std::size_t needed_bytes(const deck::Deck& deck, std::int64_t vocab) {
  const MemoryPlan memory = plan_run(deck, vocab).largest().memory;
  return memory.total() - memory.libraries;
}

std::vector<Suggestion> suggestions(const deck::Deck& deck, std::int64_t vocab, std::size_t free) {
  const Changes changes(deck, vocab, free);
  const auto recompute = recompute_steps(deck.recompute), zero = zero_steps(deck.parallel);
  const auto micro_batch = micro_batch_steps(deck.batch);
  std::vector<Suggestion> found;
  for (const auto& steps : {recompute, zero, micro_batch})
    if (auto suggestion = changes.first(steps)) found.push_back(*std::move(suggestion));
  if (!found.empty()) return found;
  // The deck's micro-batch first.
  const Overrides all = with(changes.strongest(recompute), changes.strongest(zero));
  std::vector<Overrides> sizes = {{}};
  sizes.insert(sizes.end(), micro_batch.begin(), micro_batch.end());
  if (auto suggestion = changes.first(sizes, all)) found.push_back(*std::move(suggestion));
  return found;
}

std::string to_text(const std::vector<Suggestion>& suggestions) {
  if (suggestions.empty())
    return "neither recomputation, parallel.zero nor a smaller batch.micro makes it fit; shard the "
           "model over more ranks (parallel.tensor, parallel.pipeline)";
  std::string text;
  for (std::size_t i = 0; i < suggestions.size(); ++i) {
    const char* before = i == 0 ? "" : i + 1 == suggestions.size() ? " or " : ", ";
    text += fmt::format("{}{} ({})", before, fmt::join(suggestions[i].overrides, " "),
                        human_bytes(static_cast<double>(suggestions[i].bytes)));
  }
  return text + " would fit";
}

}  // namespace trireme::plan
