// What a restart may change: the deck of a checkpoint against the deck of the run that continues
// it.
#pragma once

#include <string>
#include <vector>

#include "deck/deck.hpp"

namespace trireme::deck {

/// Whether a restart may change a key.
enum class RestartRule {
  free,   ///< yes: output cadence, limits, names
  noted,  ///< yes, and the restart says so: it changes the course of training or the layout
  fixed,  ///< no: model shape, tokenizer, seed, order of the data
};

constexpr auto names_of(RestartRule) {
  return std::to_array<std::string_view>({"free", "noted", "fixed"});
}

/// One key that differs; values as the deck writes them, "not set" where there is none.
struct Change {
  std::string key;
  std::string before;
  std::string after;
  RestartRule rule{};
  std::string reason;  ///< why it is fixed, and the way out, where the key does not say so itself
};

/// The keys whose effective values differ, in the order of the table. Those that share data.train
/// out (data.split, data.valid, data.test) are fixed where they change its training part, else
/// noted.
std::vector<Change> compare_for_restart(const Deck& checkpoint, const Deck& run);

/// One line for people: "schedule.peak: 0.0003 in the checkpoint, 0.0001 now".
std::string describe(const Change& change);

/// Throws DeckError that names the key and both values of each change of a fixed key, if any.
void refuse_fixed_changes(const std::vector<Change>& changes);

}  // namespace trireme::deck
