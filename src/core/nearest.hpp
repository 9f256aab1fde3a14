// "Did you mean": the known word nearest to what was written.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace trireme {

/// Number of insertions, deletions, substitutions and swaps of neighbours between two words,
/// ignoring case.
int edit_distance(std::string_view a, std::string_view b);

/// The candidate nearest to `word`, or "" when none is near enough to be what was meant.
std::string_view nearest(std::string_view word, const std::vector<std::string_view>& candidates);

/// "; did you mean 'x'?" for the nearest candidate, or "".
std::string did_you_mean(std::string_view word, const std::vector<std::string_view>& candidates);

}  // namespace trireme
