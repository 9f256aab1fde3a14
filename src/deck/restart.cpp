#include "deck/restart.hpp"

#include <fmt/format.h>

#include <numeric>
#include <utility>

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

// data.split without the parts that have datasets of their own, one weight for each part.
std::vector<double> shares_of(const Deck& deck) {
  std::vector<double> weights = effective_split(deck);
  weights.resize(3);
  return weights;
}

// The share of data.train's documents that are trained on, from the first one on.
double train_share(const Deck& deck) {
  const std::vector<double> weights = shares_of(deck);
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  return sum > 0 ? weights[0] / sum : 0;
}

// The data.split with which `run` trains on the documents of `checkpoint`; "" where none does.
std::string split_for(const Deck& checkpoint, const Deck& run) {
  std::vector<double> weights = shares_of(checkpoint);
  // What a part with datasets of its own would take is left to the other one.
  if (run.data.valid) weights[2] += std::exchange(weights[1], 0);
  if (run.data.test) weights[1] += std::exchange(weights[2], 0);
  Deck deck = run;
  deck.data.split = weights;
  return train_share(deck) == train_share(checkpoint) ? Codec<std::vector<double>>::write(weights)
                                                      : "";
}

// Whether `key`, whose value differs, may change how data.train is shared out.
bool shares_out(const std::string& key, const Deck& checkpoint, const Deck& run) {
  return key == "data.split" ||
         (key == "data.valid" && checkpoint.data.valid.has_value() != run.data.valid.has_value()) ||
         (key == "data.test" && checkpoint.data.test.has_value() != run.data.test.has_value());
}

// Fixes the changes by which `run` trains on other documents of data.train, and takes those of
// data.split by which it does not for harmless.
void judge_split(const Deck& checkpoint, const Deck& run, std::vector<Change>& changes) {
  const double before = train_share(checkpoint), after = train_share(run);
  for (Change& change : changes) {
    if (!shares_out(change.key, checkpoint, run)) continue;
    change.rule = before == after ? RestartRule::noted : RestartRule::fixed;
    if (before == after) continue;
    const std::string split = split_for(checkpoint, run);
    change.reason = fmt::format(
        "the run would train on {:.6g} % of the documents of data.train, not on {:.6g} % (try {}a "
        "new run)",
        100 * after, 100 * before, split.empty() ? "" : fmt::format("data.split = {}, or ", split));
  }
}

}  // namespace

std::vector<Change> compare_for_restart(const Deck& checkpoint, const Deck& run) {
  std::vector<Change> changes;
  for (const Key& key : keys()) {
    if (!key.has_member()) continue;
    const std::string before = value_of(key, checkpoint);
    const std::string after = value_of(key, run);
    if (before != after) changes.push_back({key.path, before, after, key.restart, ""});
  }
  judge_split(checkpoint, run, changes);
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
        "{} = {}, but the checkpoint was written with {}; a restart must not change it{}{}\n",
        change.key, change.after, change.before, change.reason.empty() ? "" : ": ", change.reason);
    ++errors;
  }
  if (errors > 0) throw DeckError("{}{}", lines, closing_line(errors));
}

}  // namespace trireme::deck
