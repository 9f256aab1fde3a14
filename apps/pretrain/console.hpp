// What trireme-pretrain prints before its first iteration and after its last one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "deck_options.hpp"
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

}  // namespace trireme
