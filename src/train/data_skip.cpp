#include "train/data_skip.hpp"

#include <algorithm>

namespace trireme::train {

std::optional<deck::IterationRange> data_to_skip(const deck::Deck& deck, const RunState& state) {
  const std::int64_t next = state.iteration + 1;
  for (const auto& [first, last] : deck.train.skip)
    if (first <= next && next <= last && last > state.passed_through)
      return deck::IterationRange{std::max(next, state.passed_through + 1), last};
  return std::nullopt;
}

std::int64_t skip_data(const deck::Deck& deck, const deck::IterationRange& range, RunState& state) {
  const deck::Progress here = state.progress();
  const deck::Progress there =
      deck::BatchSizes(deck.batch).advance(here, range.last - range.first + 1);
  state.passed_samples += there.samples - here.samples;
  state.passed_through = range.last;
  return there.samples - here.samples;
}

std::int64_t samples_to_skip(const deck::Deck& deck, RunState state, std::int64_t last_iteration) {
  const deck::BatchSizes batches(deck.batch);
  std::int64_t samples = 0;
  for (const auto& [first, last] : deck.train.skip) {
    if (first > last_iteration) break;
    const std::int64_t iterations = std::max<std::int64_t>(first - 1 - state.iteration, 0);
    const deck::Progress before = batches.advance(state.progress(), iterations);
    state.iteration = before.iteration;
    state.consumed_samples = before.samples;
    if (const auto range = data_to_skip(deck, state)) samples += skip_data(deck, *range, state);
  }
  return samples;
}

}  // namespace trireme::train
