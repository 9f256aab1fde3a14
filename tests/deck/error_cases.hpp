// Decks with one error each, for the tests of the errors' text.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "decks.hpp"

namespace trireme::deck {

/// What stands behind a single error.
inline const std::string kOneError =
    "\n1 error; nothing was started. 'trireme-pretrain --help deck' lists every key.";

/// A change to the small deck and the one line that it leads to.
struct Case {
  std::string from;
  std::string to;
  std::string line;
};

/// Each of `cases` has its line, and no other.
inline void expect_lines(const std::vector<Case>& cases) {
  for (const auto& [from, to, line] : cases) {
    EXPECT_EQ(errors_of(changed(from, to)), line + kOneError) << "after writing " << to;
  }
}

}  // namespace trireme::deck
