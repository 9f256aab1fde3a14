// Whether a run fits in the available memory, and changes of the deck with which it does. Pure.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "deck/deck.hpp"
#include "plan/run_plan.hpp"

namespace trireme::plan {

/// Memory that a run may use.
struct AvailableMemory {
  std::size_t bytes = 0;  ///< of each rank's GPU; or of the host that `ranks` ranks share
  std::string what;       ///< "that each GPU has (--memory)", after the bytes
};

/// Whether a run fits, and the reason.
struct Verdict {
  std::optional<bool> fits;  ///< unset where no memory is known
  std::string text;          ///< without a line end
};

/// Compares the plan of `deck`, whose parallel.data is resolved, with `available`: on GPUs the rank
/// with the highest peak memory with one GPU; on the host all ranks, or the `ranks_per_host` with
/// the highest, together. Where it does not fit, the text has the largest purpose and the
/// suggestions of suggestions(). Without `available` the text says what is needed and how to
/// compare it.
Verdict judge(const deck::Deck& deck, std::int64_t vocab, const RunPlan& plan,
              const std::optional<AvailableMemory>& available,
              std::optional<std::int64_t> ranks_per_host = std::nullopt);

/// Why a GPU of `total` bytes, of which `free` are free after the libraries were loaded, has no
/// room for a rank that needs `mine`, with suggestions; "" when it has.
std::string gpu_memory_problem(const deck::Deck& deck, std::int64_t vocab, const MemoryPlan& mine,
                               std::size_t free, std::size_t total);

/// Why a host with `available` bytes has no room for its `ranks` ranks, which need `needed` bytes
/// together, with suggestions; "" when it has.
std::string host_memory_problem(const deck::Deck& deck, std::int64_t vocab, const RunPlan& plan,
                                std::size_t ranks, std::size_t needed, std::size_t available);

/// Bytes that the `ranks` ranks with the highest peak memory need together, libraries included.
std::size_t bytes_of_ranks(const RunPlan& plan, std::int64_t ranks);

/// "the optimizer state takes 90.5 GiB": the largest purpose of a plan.
std::string largest_purpose(const MemoryPlan& memory);

/// "80GiB", "80 GB", "81920M", "1.5T": bytes; letters without i and B are powers of 1024, as in
/// Slurm. Throws UsageError that begins with `option`.
std::size_t parse_memory(const std::string& option, const std::string& text);

/// A change of a deck, as overrides of the command line, with which a run fits.
struct Suggestion {
  std::vector<std::string> overrides;  ///< "recompute.granularity=full"
  std::size_t bytes = 0;  ///< peak memory of the rank with the highest, without libraries
};

/// Peak memory of the rank with the highest, without libraries.
std::size_t needed_bytes(const deck::Deck& deck, std::int64_t vocab);

/// The mildest change of each kind after which no rank needs more than `free` bytes: of
/// recomputation, of the ZeRO stage, of the micro-batch. If none of them suffices, all together,
/// with the largest micro-batch that fits; nothing when none does. Changes that the deck's
/// rules forbid are left out. parallel.data must be resolved; for free bytes of a GPU.
std::vector<Suggestion> suggestions(const deck::Deck& deck, std::int64_t vocab, std::size_t free);

/// The same in words: "recompute.granularity=full (24.5 GiB) or batch.micro=4 (31.0 GiB) would
/// fit".
std::string to_text(const std::vector<Suggestion>& suggestions);

}  // namespace trireme::plan
