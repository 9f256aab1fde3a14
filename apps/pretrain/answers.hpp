// What trireme-pretrain adds to the answers of --plan and --check.
#pragma once

#include <string>

#include "deck_options.hpp"
#include "plan/cluster/cluster.hpp"
#include "plan/search/layout_search.hpp"

namespace trireme {

/// The step time that --cluster lets expect, in a line; empty without it. Throws DeckError.
inline std::string expected_line(const DeckArguments& arguments, const deck::Deck& deck,
                                 std::int64_t vocab) {
  if (!arguments.values.count("cluster")) return "";
  const plan::Cluster cluster = plan::load_cluster(arguments.values["cluster"].as<std::string>());
  return plan::describe(plan::expected_step(deck, vocab, cluster)) + "\n";
}

/// What the run would start from; empty for a fresh model. Throws as train::find_restart().
inline std::string restart_lines(const DeckArguments& arguments, const deck::Deck& deck) {
  const train::RestartPoint start =
      train::check_restart(deck, arguments.values["restart"].as<std::string>());
  if (!start.checkpoint) return "";
  std::string text = fmt::format("restart    from {}, iteration {}\n", start.checkpoint->string(),
                                 start.progress.iteration);
  for (const std::string& note : start.notes) text += fmt::format("restart    {}\n", note);
  return text;
}

/// The step time of --cluster, and for --check the checkpoint that the run would start from.
inline OwnAnswers own_answers(const DeckArguments& arguments) {
  const auto expected = [&arguments](const deck::Deck& deck, std::int64_t vocab) {
    return expected_line(arguments, deck, vocab);
  };
  const auto check = [&arguments, expected](const deck::Deck& deck, std::int64_t vocab) {
    train::require_possible_folder(deck.run.output);
    return restart_lines(arguments, deck) + expected(deck, vocab);
  };
  return {.plan = expected, .check = check};
}

}  // namespace trireme
