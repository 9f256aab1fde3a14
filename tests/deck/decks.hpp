// A small deck for tests to load, change and break.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/error.hpp"
#include "deck/load.hpp"
#include "decks.hpp"

namespace trireme::deck {

/// The shortest deck that is complete. Tests count on its line numbers.
inline const std::string kSmallDeck =
    "model:\n"                                        // line 1
    "  layers: 4\n"                                   // line 2
    "  hidden: 64\n"                                  // line 3
    "  heads: 8\n"                                    // line 4
    "  sequence: 32\n"                                // line 5
    "batch: {micro: 2, global: 16}\n"                 // line 6
    "schedule:\n"                                     // line 7
    "  peak: 3e-4\n"                                  // line 8
    "data:\n"                                         // line 9
    "  train: corpus_text_document\n"                 // line 10
    "  tokenizer: {type: sentencepiece, model: m}\n"  // line 11
    "train:\n"                                        // line 12
    "  iterations: 100\n";                            // line 13

/// The small deck with overrides.
inline Deck small_deck(const std::vector<std::string>& overrides = {}) {
  return parse(kSmallDeck, "small.yaml", overrides);
}

/// The text of the DeckError that `text` leads to; "" when it is a good deck.
inline std::string errors_of(const std::string& text,
                             const std::vector<std::string>& overrides = {},
                             const LoadOptions& options = {}) {
  try {
    parse(text, "bad.yaml", overrides, options);
  } catch (const DeckError& error) {
    return error.what();
  }
  return "";
}

/// The small deck with `from` replaced by `to`.
inline std::string changed(const std::string& from, const std::string& to) {
  std::string text = kSmallDeck;
  const std::size_t at = text.find(from);
  TRIREME_CHECK(at != std::string::npos, "'{}' is not in the small deck", from);
  return text.replace(at, from.size(), to);
}

/// The line after a single error.
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
