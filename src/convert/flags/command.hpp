// The commands of a script: the one that trains, the number of ranks that its launcher starts, and
// the Trireme commands that replace preprocessing, evaluation and generation.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "convert/shell/script.hpp"

namespace trireme::convert::flags {

/// A command line cut at its program.
struct TrainingCommand {
  std::vector<std::string> launcher;  ///< the words before the program
  std::string program;                ///< "pretrain_gpt.py", "" where only flags are given
  std::vector<std::string> flags;     ///< the words after it
  std::string place;                  ///< "train.sh:12"
};

/// The command of `run` that trains: a Python program with --num-layers. Where there are several
/// that differ, `line` says which. Throws DataError that lists what there is.
TrainingCommand find_training_command(const shell::Run& run, const std::string& file,
                                      std::optional<int> line);

/// The commands of a script that are flags alone, though a program runs in it: a line that was to
/// go on did not. Nobody runs them.
std::vector<shell::RunCommand> stray_flags(const shell::Run& run);

/// The commands of `run` that start a Python program which does not train, in order; none where
/// another command does.
std::vector<TrainingCommand> commands_without_training(const shell::Run& run);

/// The hosts and GPUs that DeepSpeed's `-i host:4,5@host2:4,5` names, a line "host slots=2
/// gpus=4,5" each, as jobs/ssh/train.sh reads them; "" without it.
std::string hosts_of(const std::vector<std::string>& launcher);

/// How many ranks there are, and what says so.
struct Ranks {
  std::int64_t count = 0;
  std::string source;  ///< "torchrun --nproc_per_node 8 --nnodes 2"
};

/// The ranks that the words before the program start; empty when they do not tell. `sbatch` are the
/// words of the script's #SBATCH lines, which count under srun.
std::optional<Ranks> count_ranks(const std::vector<std::string>& launcher,
                                 const std::vector<std::string>& sbatch);

/// The same done by Trireme's programs.
struct Equivalent {
  std::string commands;              ///< a line of a shell each
  std::vector<std::string> notes;    ///< a line each, with the place
  std::vector<std::string> unbuilt;  ///< options among them that are not built yet
};

/// What does the work of `command`; empty where its program is another, or lacks what it needs.
/// Throws DeckError, a line for each flag that has no counterpart.
std::optional<Equivalent> equivalent_of(const TrainingCommand& command);

}  // namespace trireme::convert::flags
