// Whether a run fits in the memory that there is. Pure.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "deck/deck.hpp"
#include "plan/run_plan.hpp"

namespace trireme::plan {

/// Memory that a run may use.
struct MemoryThere {
  std::size_t bytes = 0;  ///< of each rank's GPU; or of the host that `ranks` ranks share
  std::string what;       ///< "that each GPU has (--memory)", after the bytes
};

/// The answer, and why.
struct Verdict {
  std::optional<bool> fits;  ///< unset where no memory is known
  std::string text;          ///< without a line end
};

/// Compares the plan of `deck`, whose parallel.data is resolved, with `there`: on GPUs the rank
/// with the highest peak memory with one GPU; on the host all ranks, or the `ranks_per_host` with
/// the highest, together. Where it does not fit, the text has the largest purpose and the
/// suggestions of remedies(). Without `there` the text says what is needed and how to compare it.
Verdict judge(const deck::Deck& deck, std::int64_t vocab, const RunPlan& plan,
              const std::optional<MemoryThere>& there,
              std::optional<std::int64_t> ranks_per_host = std::nullopt);

/// Bytes that the `ranks` ranks with the highest peak memory need together, libraries included.
std::size_t bytes_of_ranks(const RunPlan& plan, std::int64_t ranks);

/// "the optimizer state takes 90.5 GiB": the purpose of a plan that takes most.
std::string largest_purpose(const MemoryPlan& memory);

/// "80GiB", "80 GB", "81920M", "1.5T": bytes; letters without i and B are powers of 1024, as in
/// Slurm. Throws UsageError that begins with `option`.
std::size_t parse_memory(const std::string& option, const std::string& text);

}  // namespace trireme::plan
