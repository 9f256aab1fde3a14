#include "deck/restart.hpp"

#include <fmt/format.h>

#include "core/error.hpp"
#include "deck/problems.hpp"
#include "deck/schema.hpp"

namespace trireme::deck {
namespace {

std::string value_of(const Key& key, const Deck& deck) {
  const std::string value = key.write(deck);
  if (!value.empty()) return value;
  return key.rules.word.empty() ? "not set" : key.rules.word;
}

}  // namespace

std::vector<Change> compare_for_restart(const Deck& checkpoint, const Deck& run) {
  std::vector<Change> changes;
  for (const Key& key : keys()) {
    if (!key.has_member()) continue;
    const std::string before = value_of(key, checkpoint);
    const std::string after = value_of(key, run);
    if (before != after) changes.push_back({key.path, before, after, key.restart});
  }
  return changes;
}

std::string describe(const Change& change) {
  return fmt::format("{}: {} in the checkpoint, {} now", change.key, change.before, change.after);
}

void refuse_fixed_changes(const std::vector<Change>& changes) {
  std::string lines;
  std::size_t errors = 0;
  for (const Change& change : changes) {
    if (change.rule != RestartRule::fixed) continue;
    lines += fmt::format(
        "{} = {}, but the checkpoint was written with {}; a restart must not change it\n",
        change.key, change.after, change.before);
    ++errors;
  }
  if (errors > 0) throw DeckError("{}{}", lines, closing_line(errors));
}

}  // namespace trireme::deck
