// The keys of a sweep, which trireme-sweep reads and no run holds.
#include "deck/keys/groups.hpp"

namespace trireme::deck {

void sweep_keys(std::vector<Key>& rows) {
  rows.insert(
      rows.end(),
      {
          for_sweep("sweep.KEY", "values of any key of the deck")
              .help(
                  "Every combination runs: [a, b], 1..8, {from, to, step} or {from, to, factor}."),
          for_sweep("sweep.zip", "section of KEY: values, or list of such sections")
              .help("Values taken pairwise: the first of each key, the second of each, ..."),
          for_sweep("sweep.cases", "section of NAME: {KEY: value, ...}")
              .help("Named settings; the run folder gets the name."),
          for_sweep("sweep.file", "text")
              .help("File of settings: a line of KEY=VALUE ... for each run."),
          for_sweep("sweep.ranks", "whole number")
              .help("Ranks of a run whose parallel.data is auto; default: the minimum."),
          for_sweep("sweep.jobs", "whole number")
              .help("Runs at a time: 1 on this machine without it, all in a Slurm array."),
          for_sweep("sweep.launcher", "text")
              .help("Words before the program, with {ranks}; without it mpirun or srun."),
          for_sweep("sweep.sbatch", "text")
              .help("Further words for sbatch: --partition=..., --time=..., --gpus-per-node=..."),
      });
}

}  // namespace trireme::deck
