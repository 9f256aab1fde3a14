// What can be wrong with the sizes of batches, for the checks of the deck.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "deck/deck.hpp"

namespace trireme::deck {

/// A key whose value does not fit others, and a line that says so.
struct BatchProblem {
  std::string_view key;
  std::string text;
};

/// Why batch.global, or a batch.rampup all of which is given, does not fit `data` copies of the
/// model or the length of the run; nothing when they do.
std::optional<BatchProblem> batch_problem(const Deck& deck, std::int64_t data);

}  // namespace trireme::deck
