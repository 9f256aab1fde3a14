// What makes a run fit that needs more memory than there is.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "deck/deck.hpp"

namespace trireme::plan {

/// A change of a deck, as overrides of the command line, with which a run fits.
struct Remedy {
  std::vector<std::string> overrides;  ///< "recompute.granularity=full"
  std::size_t bytes = 0;               ///< what the fullest rank then needs, libraries aside
};

/// What a rank of the fullest stage needs, libraries aside.
std::size_t needed_bytes(const deck::Deck& deck, std::int64_t vocab);

/// The mildest change of each kind after which no rank needs more than `free` bytes: of what is
/// computed again, of ZeRO's stage, of the micro-batch. If none of them suffices, all together,
/// with as large a micro-batch as fits; nothing when that does not either. Changes that the deck's
/// rules forbid are left out. parallel.data must be resolved; for free bytes of a GPU.
std::vector<Remedy> remedies(const deck::Deck& deck, std::int64_t vocab, std::size_t free);

/// The same in words: "recompute.granularity=full (24.5 GiB) or batch.micro=4 (31.0 GiB) would
/// fit".
std::string to_text(const std::vector<Remedy>& remedies);

}  // namespace trireme::plan
