// Counts with their noun, for messages.
#pragma once

#include <fmt/format.h>

#include <concepts>
#include <string>
#include <string_view>

namespace trireme {

/// "1 rank", "2 ranks", "0 batches"; the noun is regular and in the singular.
template <std::integral Count>
std::string counted(Count count, std::string_view noun) {
  const bool hissing = noun.ends_with("ch") || noun.ends_with("s") || noun.ends_with("x");
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : hissing ? "es" : "s");
}

}  // namespace trireme
