// What trireme-pretrain prints before its first iteration and after its last one, and what it adds
// to the answers of --plan and --check.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "deck_options.hpp"
#include "plan/cluster/cluster.hpp"
#include "plan/search/layout_search.hpp"
#include "train/trainer.hpp"

namespace trireme {

/// Everything about the start that rank 0 decides and prints.
struct Start {
  std::unique_ptr<train::FolderLock> lock;
  std::vector<std::string> data_notes;  ///< of train::check_datasets()
  train::RestartPoint restart;
  std::unique_ptr<report::Reporter> reporter;
};

/// The command as it was typed; without --restart it is the one that resumes the run.
std::string command_line(int argc, char** argv, int ranks, bool with_restart);

/// Whether a terminal shows standard output. mpirun gives each rank a pseudo-terminal and passes on
/// what it reads there: what counts is mpirun's own output.
bool prints_to_terminal();

/// Prints program, command, hosts, layout, memory, data and run folder, and begins metrics.jsonl.
/// `hosts` has one name for each rank. On rank 0.
void introduce(const Start& start, const char* program, const deck::Deck& deck,
               const plan::Vocabulary& vocabulary, const DeckArguments& arguments,
               const std::string& command, const std::vector<std::string>& hosts,
               const std::string& devices);

/// Prints why the run stopped and how to resume it by `command`, or to continue a finished one.
void conclude(report::Reporter& reporter, train::StopReason stop, const train::Trainer& trainer,
              const deck::Deck& deck, const std::string& command, double seconds);

// ---- answers of --plan and --check

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

/// The options that --memory belongs to.
inline constexpr const char* kPretrainMemoryUsers = "--plan, --check and --print-job";

/// The step time of --cluster, and for --check the checkpoint that the run would start from.
inline OwnAnswers own_answers(const DeckArguments& arguments) {
  const auto expected = [&arguments](const deck::Deck& deck, std::int64_t vocab) {
    return expected_line(arguments, deck, vocab);
  };
  const auto check = [&arguments, expected](const deck::Deck& deck, std::int64_t vocab) {
    train::require_possible_folder(deck.run.output);
    return restart_lines(arguments, deck) + expected(deck, vocab);
  };
  return {.plan = expected, .check = check, .memory_users = kPretrainMemoryUsers};
}

}  // namespace trireme
