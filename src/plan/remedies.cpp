#include "plan/remedies.hpp"

#include <fmt/ranges.h>

#include <optional>

#include "core/error.hpp"
#include "core/files.hpp"
#include "deck/describe.hpp"
#include "deck/load.hpp"
#include "plan/run_plan.hpp"

namespace trireme::plan {
namespace {

using Overrides = std::vector<std::string>;

Overrides with(Overrides first, const Overrides& more) {
  first.insert(first.end(), more.begin(), more.end());
  return first;
}

/// Ever more that is computed again, and ever less that is kept for it.
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
  std::optional<Remedy> first(const std::vector<Overrides>& steps,
                              const Overrides& base = {}) const {
    for (const Overrides& step : steps) {
      const Overrides overrides = with(base, step);
      const auto needed = bytes(overrides);
      if (needed && *needed <= free_) return Remedy{overrides, *needed};
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

std::vector<Remedy> remedies(const deck::Deck& deck, std::int64_t vocab, std::size_t free) {
  const Changes changes(deck, vocab, free);
  const auto recompute = recompute_steps(deck.recompute), zero = zero_steps(deck.parallel);
  const auto micro_batch = micro_batch_steps(deck.batch);
  std::vector<Remedy> found;
  for (const auto& steps : {recompute, zero, micro_batch})
    if (auto remedy = changes.first(steps)) found.push_back(*std::move(remedy));
  if (!found.empty()) return found;
  // With the batch as it is first.
  const Overrides all = with(changes.strongest(recompute), changes.strongest(zero));
  std::vector<Overrides> sizes = {{}};
  sizes.insert(sizes.end(), micro_batch.begin(), micro_batch.end());
  if (auto remedy = changes.first(sizes, all)) found.push_back(*std::move(remedy));
  return found;
}

std::string to_text(const std::vector<Remedy>& remedies) {
  if (remedies.empty())
    return "neither recomputation, parallel.zero nor a smaller batch.micro makes it fit; cut the "
           "model over more ranks (parallel.tensor, parallel.pipeline)";
  std::string text;
  for (std::size_t i = 0; i < remedies.size(); ++i) {
    const char* before = i == 0 ? "" : i + 1 == remedies.size() ? " or " : ", ";
    text += fmt::format("{}{} ({})", before, fmt::join(remedies[i].overrides, " "),
                        human_bytes(static_cast<double>(remedies[i].bytes)));
  }
  return text + " would fit";
}

}  // namespace trireme::plan
