// Which checkpoints of a run stay, and how many there are at once.
#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint/folder.hpp"
#include "deck/batch_sizes.hpp"
#include "deck/deck.hpp"

namespace trireme::train {

/// Whether checkpoint.keep_every keeps the checkpoint of `iteration` for good.
bool is_milestone(const deck::Deck& deck, std::int64_t iteration);

/// How many checkpoints a run from `now` to `end` will have at once beside the space that those of
/// its folder take now, 64 at most, which takes seconds to reserve. checkpoint.keep deletes an old
/// one once a new one is there. One where all are kept: people have to move them away themselves,
/// and so it is with milestones to come, which are not counted.
int most_new_checkpoints(const deck::Deck& deck, const deck::Progress& now,
                         const deck::Progress& end, const std::vector<checkpoint::Step>& steps);

}  // namespace trireme::train
