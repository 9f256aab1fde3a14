// The keys of communication and logs.
#include "deck/keys/groups.hpp"

namespace trireme::deck {

void log_keys(std::vector<Key>& rows) {
  rows.insert(
      rows.end(),
      {
          key(TRIREME_MEMBER(comm.timeout))
              .by_default("10 minutes")
              .above(0)
              .units(times())
              .help("Maximum wait for other ranks in one operation; then the job ends."),
          key(TRIREME_MEMBER(comm.nccl_debug))
              .help("Value of NCCL_DEBUG: VERSION, WARN, INFO or TRACE."),
          key(TRIREME_MEMBER(log.every))
              .by_default("10")
              .from(1, kMostSteps)
              .unit("iterations")
              .help("Iterations between training lines."),
          key(TRIREME_MEMBER(log.tensorboard.enable))
              .by_default("true")
              .help("Write TensorBoard event files."),
          key(TRIREME_MEMBER(log.tensorboard.dialect))
              .by_default("trireme")
              .help("Names of the TensorBoard tags."),
          key(TRIREME_MEMBER(log.tensorboard.flush_every))
              .by_default("10")
              .from(1, kMostSteps)
              .unit("events")
              .help("TensorBoard events between flushes."),
          key(TRIREME_MEMBER(log.timers))
              .by_default("false")
              .help(
                  "Log the time of each part of an iteration, minimum and maximum over the ranks."),
          key(TRIREME_MEMBER(log.memory))
              .by_default("true")
              .help("Log the memory in use after the first training line."),
          key(TRIREME_MEMBER(log.norms))
              .by_default("false")
              .help("Log the norm of the parameters and the zeros in the gradient."),
          key(TRIREME_MEMBER(log.gpu_every))
              .from(1, kMostSteps)
              .unit("iterations")
              .help("Iterations between lines with the GPUs' utilisation."),
          key(TRIREME_MEMBER(log.rank_files))
              .by_default("false")
              .help("Write each node's output and its GPUs' utilisation to <run>/ranks."),
          later("log.trace.iterations", "list of whole numbers")
              .help("Iterations whose timeline is recorded."),
      });
}

}  // namespace trireme::deck
