// The layout search: of all layouts of a model on a cluster the fastest that fit into memory, and
// those that give most for money.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "deck/deck.hpp"
#include "plan/cluster/cluster.hpp"
#include "plan/search/step_time.hpp"

namespace trireme::plan {

/// What to search.
struct SearchOptions {
  int top = 10;                    ///< layouts in the ranking
  std::optional<double> budget;    ///< dollars that the whole run may cost
  std::vector<std::string> fixed;  ///< keys of the deck that keep their values: "parallel.tensor"
  std::FILE* progress = nullptr;   ///< gets a progress meter; null: nothing
};

/// A layout and what it costs.
struct TimedLayout {
  deck::Deck deck;  ///< with a partition; parallel.data is resolved
  NodeOrder order;
  StepTime time;
  std::size_t memory = 0;        ///< bytes of the rank with the highest peak
  bool exact_partition = false;  ///< whether no other partition of the layers is faster
  std::optional<double> dollars_per_step;

  std::int64_t ranks() const {
    return deck.parallel.tensor * deck.parallel.pipeline * *deck.parallel.data;
  }
};

/// What was found.
struct SearchResult {
  std::vector<TimedLayout> ranked;  ///< by time
  std::vector<TimedLayout> pareto;  ///< by time, each cheaper than the one before; with prices
  std::int64_t considered = 0;      ///< layouts that the deck's rules allow
  std::int64_t timed = 0;           ///< of them by the simulator
  double seconds = 0;
};

/// Times `deck`'s own layout, whose parallel.data is resolved, on the first of the nodes of
/// `order`. Throws DeckError when the cluster has fewer GPUs, or a kind of them is not known to run
/// it.
TimedLayout time_layout(const deck::Deck& deck, std::int64_t vocab, const Cluster& cluster,
                        const NodeOrder& order);

/// The fastest partition of `deck`'s layout, all else as it is; nothing under an interleaved
/// schedule, or when none fits.
std::optional<TimedLayout> repartition(const deck::Deck& deck, std::int64_t vocab,
                                       const Cluster& cluster, const NodeOrder& order);

/// Searches tensor x pipeline x data x micro-batch x schedule x interleave x recomputation x ZeRO x
/// sequence parallelism x order of nodes, each with its best partition. All layouts whose lower
/// bound is less than the time of the last of the ranking are timed. Overlap is always on: without
/// it no layout is faster. On a cluster without links only what changes no communication is
/// searched: the rest cannot be compared. `deck` is for GPUs.
SearchResult search_layouts(const deck::Deck& deck, std::int64_t vocab, const Cluster& cluster,
                            const SearchOptions& options = {});

}  // namespace trireme::plan
