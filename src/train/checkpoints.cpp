#include "train/checkpoints.hpp"

#include <algorithm>

namespace trireme::train {
namespace {

/// Whether `iteration` comes to a multiple of `every`.
bool is_due(const deck::Deck& deck, const deck::Length& every, std::int64_t iteration) {
  const deck::BatchSizes batches(deck.batch);
  return deck::reaches(every, batches.advance({}, iteration - 1), batches.advance({}, iteration));
}

/// How many checkpoints the deck asks for between `now` and `end`.
std::int64_t saves_due(const deck::Deck& deck, const deck::Progress& now,
                       const deck::Progress& end) {
  const auto& every = deck.checkpoint.every;
  const bool last = deck.checkpoint.at_end && !(every && is_due(deck, *every, end.iteration));
  if (!every) return last;
  const deck::BatchSizes batches(deck.batch);
  return batches.times_reached(*every, end) - batches.times_reached(*every, now) + last;
}

}  // namespace

bool is_milestone(const deck::Deck& deck, std::int64_t iteration) {
  const auto& every = deck.checkpoint.keep_every;
  return every && is_due(deck, *every, iteration);
}

int most_new_checkpoints(const deck::Deck& deck, const deck::Progress& now,
                         const deck::Progress& end, const std::vector<checkpoint::Step>& steps) {
  constexpr std::int64_t kMost = 64;
  if (!deck.checkpoint.keep) return 1;
  const auto replaced = std::count_if(
      steps.begin(), steps.end(),
      [&](const checkpoint::Step& step) { return !is_milestone(deck, step.iteration); });
  const std::int64_t at_once =
      std::min(std::min(*deck.checkpoint.keep, kMost) + 1 - replaced, saves_due(deck, now, end));
  return static_cast<int>(std::clamp<std::int64_t>(at_once, 1, kMost));
}

}  // namespace trireme::train
