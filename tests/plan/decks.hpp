// Decks of these tests: GPT-2's shape, changed by overrides.
#pragma once

#include <string>
#include <vector>

#include "deck/load.hpp"

namespace trireme::plan {

/// GPT-2 124M without data, its layout fitted to `ranks`.
inline deck::Deck gpt2_deck(const std::vector<std::string>& overrides = {},
                            std::int64_t ranks = 1) {
  deck::Deck deck = deck::parse(
      "model: {layers: 12, hidden: 768, heads: 12, sequence: 1024, vocab: 50257}\n"
      "batch: {micro: 4, global: 64}\n"
      "schedule: {peak: 6e-4, warmup: 100, decay: 1000}\n"
      "train: {iterations: 1000}\n",
      "gpt2.yaml", overrides, {.need_data = false});
  deck::resolve_world_size(deck, ranks);
  return deck;
}

}  // namespace trireme::plan
