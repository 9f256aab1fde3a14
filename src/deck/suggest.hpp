// "Did you mean": the known word nearest to what was written.
#pragma once

#include <string_view>
#include <vector>

namespace trireme::deck {

/// Number of insertions, deletions, substitutions and swaps of neighbours between two words,
/// ignoring case.
int edit_distance(std::string_view a, std::string_view b);

/// The candidate nearest to `word`, or "" when none is near enough to be what was meant.
std::string_view nearest(std::string_view word, const std::vector<std::string_view>& candidates);

}  // namespace trireme::deck
