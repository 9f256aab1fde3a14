// The commands of a script: the one that trains, the number of ranks that its launcher starts, and
// the Trireme commands that replace preprocessing, evaluation and generation.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "convert/shell/script.hpp"

namespace trireme::convert::flags {

/// A command line, split at its program.
struct TrainingCommand {
  std::vector<std::string> launcher;  ///< the words before the program
  std::string program;                ///< "pretrain_gpt.py"; "" if only flags are given
  std::vector<std::string> flags;     ///< the words after it
  std::string place;                  ///< "train.sh:12"
};

/// The training command of `run`: a Python program with --num-layers. `line` chooses one of several
/// different ones. Throws DataError that lists the commands.
TrainingCommand find_training_command(const shell::Run& run, const std::string& file,
                                      std::optional<int> line);

/// The commands of a script that are flags alone although it runs a program: a line continuation is
/// missing before them.
std::vector<shell::RunCommand> stray_flags(const shell::Run& run);

/// The commands of `run` that start a Python program other than training, in order; empty if any
/// command trains.
std::vector<TrainingCommand> commands_without_training(const shell::Run& run);

/// Replaces `--hostfile FILE` (or `-H FILE`) of DeepSpeed's launcher by the `--include` that means
/// the same, host:0,1,2,3@host2:..., after --num_nodes, --num_gpus, --include and --exclude. FILE,
/// lines of "host slots=N", is read from `folder` if its path is relative; without it the launcher
/// stays as it is. Throws DataError for a malformed file.
void expand_hostfile(std::vector<std::string>& launcher, const std::filesystem::path& folder);

/// The hosts and GPUs of DeepSpeed's `-i host:4,5@host2:4,5`, one a line as "host slots=2
/// gpus=4,5", the format of jobs/ssh/train.sh; "" without it.
std::string hosts_of(const std::vector<std::string>& launcher);

/// The number of ranks and its source.
struct Ranks {
  std::int64_t count = 0;
  std::string source;  ///< "torchrun --nproc_per_node 8 --nnodes 2"
};

/// The option of the `launcher` that gives a number of ranks or nodes which the script does not
/// know, with its value, as in "--nnodes ${NNODES}"; "" if there is none, or Slurm knows it.
std::string unknown_ranks(const std::vector<std::string>& launcher);

/// The number of ranks that the `launcher` starts; empty if unknown. `sbatch` are the words of the
/// script's #SBATCH lines, which apply to srun.
std::optional<Ranks> count_ranks(const std::vector<std::string>& launcher,
                                 const std::vector<std::string>& sbatch);

/// The commands of Trireme that replace one of Megatron-LM.
struct Equivalent {
  std::string commands;              ///< shell commands, one a line
  std::vector<std::string> notes;    ///< one a line, with the place
  std::vector<std::string> unbuilt;  ///< options among them that are not implemented yet
};

/// The Trireme commands that replace `command`; empty for unknown programs and missing flags.
/// Throws DeckError with a line for each flag that has no counterpart.
std::optional<Equivalent> equivalent_of(const TrainingCommand& command);

}  // namespace trireme::convert::flags
