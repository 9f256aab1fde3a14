// Checks that involve more than one key. Each names the keys and a value that works.
#pragma once

#include <map>
#include <set>
#include <string>

#include "deck/load.hpp"
#include "deck/problems.hpp"

namespace trireme::deck {

/// What the checks know beside the values.
struct Given {
  std::map<std::string, Place, std::less<>> places;  ///< of keys and sections
  std::set<std::string, std::less<>> bad;            ///< keys with an error of their own
};

/// Adds a problem for each rule that the values break. Rules that involve a bad key are left out.
void check_together(const Deck& deck, const Given& given, const LoadOptions& options,
                    Problems& problems);

}  // namespace trireme::deck
