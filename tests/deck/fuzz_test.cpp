// Decks mutated at random: each is good or leads to one DeckError, and nothing else.
#include <gtest/gtest.h>

#include <array>
#include <random>

#include "deck/describe.hpp"
#include "deck/sweep.hpp"
#include "decks.hpp"

namespace trireme::deck {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr int kDecks = 2'000;
#else
constexpr int kDecks = 20'000;
#endif

constexpr std::array<std::string_view, 40> kPieces = {
    ":",    "\n",   "  ",   "- ",  "[",    "]",     "{",    "}",    ",",        "&a ",
    "*a",   "<<: ", "!!x ", "? ",  "| ",   ">\n",   "\"",   "'",    "#",        "%",
    "---",  "...",  "\t",   "~",   "null", "1e309", "-1",   ".nan", "010",      "1_0",
    "true", "auto", "0-1",  "\\x", "0.5",  "9e18",  "\x04", "\xff", "\xe2\x82", "\r"};

class Mutator {
 public:
  explicit Mutator(unsigned seed) : random_(seed) {}

  std::string operator()(std::string text) {
    const std::size_t edits = 1 + below(6);
    for (std::size_t edit = 0; edit < edits; ++edit) {
      const std::size_t at = below(text.size() + 1);
      const std::size_t length = std::min(below(12), text.size() - at);
      switch (below(4)) {
        case 0:
          text.insert(at, kPieces[below(kPieces.size())]);
          break;
        case 1:
          text.erase(at, length);
          break;
        case 2:
          text.insert(below(text.size() + 1), text.substr(at, 4 * length));
          break;
        default:
          if (at < text.size()) text[at] = static_cast<char>(below(256));
      }
    }
    return text;
  }

 private:
  // Not std::uniform_int_distribution: its numbers differ between libraries.
  std::size_t below(std::size_t bound) { return random_() % bound; }

  std::mt19937 random_;
};

TEST(Fuzz, MutatedDecksNeverCrash) {
  Mutator mutate(20260);
  const std::array<std::string, 2> seeds = {kSmallDeck, print_deck(small_deck())};
  int good = 0;
  for (int i = 0; i < kDecks; ++i) {
    const std::string text = mutate(seeds[i % 2]);
    try {
      const Deck deck = parse(text, "fuzz.yaml");
      ++good;
      EXPECT_TRUE(parse(print_deck(deck), "fuzz.yaml") == deck) << text;
    } catch (const DeckError& error) {
      EXPECT_NE(std::string_view(error.what()).find("nothing was started"), std::string::npos);
    }
  }
  EXPECT_GT(good, kDecks / 50) << "too few mutated decks are good to test the good path";
  EXPECT_LT(good, kDecks) << "no mutated deck was bad";
}

TEST(Fuzz, MutatedOverridesNeverCrash) {
  Mutator mutate(7);
  for (int i = 0; i < kDecks / 10; ++i) {
    const std::string text = mutate("model.dropout={attention: 0.5, hidden: 0}");
    try {
      small_deck({text});
    } catch (const DeckError& error) {
      EXPECT_NE(std::string_view(error.what()).find("error"), std::string::npos);
    }
  }
}

TEST(Fuzz, MutatedSweepsNeverCrash) {
  Mutator mutate(11);
  const std::string section =
      "sweep:\n"
      "  schedule: {peak: [1e-4, 3e-4]}\n"
      "  run.seed: 1..3\n"
      "  optimizer.beta2: {from: 0.9, to: 0.99, step: 0.03}\n"
      "  zip: [{model.hidden: [64, 128], model.heads: [4, 8]}]\n"
      "  cases: {a: {parallel: {tensor: 2}}, b: ~}\n"
      "  file: runs.txt\n"
      "  launcher: mpirun -n {ranks}\n";
  int good = 0;
  for (int i = 0; i < kDecks / 4; ++i) {
    const bool in_file = i % 2 == 1;
    const std::string text = in_file ? section : mutate(section);
    const std::string lines = "log.every=1 data.train=[a, b]\n";
    try {
      const auto read = [&](const std::string&) { return in_file ? mutate(lines) : lines; };
      const Sweep sweep = expand_sweep(text, "fuzz.yaml", {}, read);
      ++good;
      ASSERT_FALSE(sweep.runs.empty());
    } catch (const DeckError& error) {
      EXPECT_NE(std::string_view(error.what()).find("nothing was started"), std::string::npos);
    }
  }
  EXPECT_GT(good, kDecks / 100) << "too few mutated sweeps are good to test the good path";
}

}  // namespace
}  // namespace trireme::deck
