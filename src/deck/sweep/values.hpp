// The values of one key of a sweep, and single values as text for an override.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "deck/document.hpp"

namespace trireme::deck {

/// The most runs that a sweep may have.
inline constexpr std::size_t kMostRuns = 10'000;

/// An item as what stands behind `key=` in an override: YAML on one line, "" for nothing.
std::string override_text(const Item& item);

/// The values of a list, a range `1..8`, or {from, to, step} or {from, to, factor}. Throws
/// BadValue.
std::vector<std::string> list_values(const Item& item);

/// The words of a line, cut at blanks outside of quotes and brackets.
std::vector<std::string> split_words(std::string_view line);

}  // namespace trireme::deck
