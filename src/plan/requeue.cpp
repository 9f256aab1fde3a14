#include "plan/requeue.hpp"

#include <fmt/format.h>

namespace trireme::plan {

std::string note_checkpoint_lines(const std::string& run_folder) {
  return fmt::format(
      "newest_checkpoint() {{ cat {}/checkpoints/latest 2>/dev/null || true; }}\n"
      "before=$(newest_checkpoint)\n",
      run_folder);
}

std::string killed_rank_lines() {
  return "# A rank that a signal ended (SIGABRT, SIGBUS, SIGKILL, SIGSEGV) counts as 75 where this "
         "start has\n"
         "# written a checkpoint: the next one resumes from it and gets further.\n"
         "case $code in\n"
         "  134 | 135 | 137 | 139)\n"
         "    now=$(newest_checkpoint)\n"
         "    if [ -n \"$now\" ] && [ \"$now\" != \"$before\" ]; then code=75; fi\n"
         "    ;;\n"
         "esac\n";
}

}  // namespace trireme::plan
