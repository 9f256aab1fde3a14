// The deck in words: the effective deck, and help for every key, both from the table of keys.
#pragma once

#include <string>
#include <string_view>

#include "deck/deck.hpp"

namespace trireme::deck {

/// The effective deck as YAML, which parse() reads back to an equal Deck. Values that leaving the
/// key out would give end in `# default`; optional keys that are not set appear as comments. The
/// text depends on the values alone, so printing what was parsed back gives the same text.
std::string print_deck(const Deck& deck);

/// The value of `key` in `deck`: of a text the text itself, else as YAML; "" where it is not set.
/// Throws UsageError, with a suggestion, when there is no such key.
std::string print_value(const Deck& deck, std::string_view key);

/// Help on `topic`: "deck" (one line for each key), "deck.section" or "deck.section.key" (type,
/// default, range, allowed values, what a restart may do); any other word finds a key by another
/// program's name for it, or all keys that mention it. Throws UsageError, with a suggestion, when
/// nothing is found. Lines have at most 100 columns.
std::string help(std::string_view topic);

}  // namespace trireme::deck
