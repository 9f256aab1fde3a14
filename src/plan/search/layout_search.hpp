// The layout search: what is compared, what is found, and the step time expected of a run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "deck/deck.hpp"
#include "plan/cluster/cluster.hpp"
#include "plan/search/step_time.hpp"

namespace trireme::plan {

// The layouts that a search compares: all that the deck's rules allow, on all orders of nodes; and
// their partitions.

/// One point of the search: `deck`'s values that change.
struct Candidate {
  deck::Parallel parallel;
  std::int64_t micro = 1;
  deck::Granularity granularity{};
  std::size_t order = 0;
  double bound = 0;
};

/// The candidates of a deck on nodes.
class Enumeration {
 public:
  /// `fixed` are keys of the deck that keep their values. All but these must outlive this.
  Enumeration(const deck::Deck& deck, std::int64_t vocab, const Cluster& cluster,
              std::vector<std::string> fixed);

  /// Appends all layouts on the nodes of `map`, which have number `order`, with their bounds.
  void add(const NodeMap& map, std::size_t order, std::vector<Candidate>& found) const;

  deck::Deck deck_of(const Candidate& candidate) const;

  /// The largest number of ranks up to `gpus` that a layout may have, memory and GPUs apart.
  std::int64_t most_ranks(std::int64_t gpus) const;

 private:
  std::vector<std::int64_t> tensor_sizes() const;
  bool is_fixed(const std::string& key) const;
  template <typename T>
  bool allowed(const std::string& key, const T& given, const T& value) const {
    return !is_fixed(key) || given == value;
  }
  std::vector<std::int64_t> values(const std::string& key, std::int64_t given,
                                   std::vector<std::int64_t> all) const;
  void add_schedules(const NodeMap& map, std::size_t order, std::int64_t tensor,
                     std::int64_t stages, std::int64_t data, std::int64_t micro,
                     std::vector<Candidate>& found) const;
  void add_variants(const NodeMap& map, Candidate candidate, std::vector<Candidate>& found) const;

  const deck::Deck& deck_;
  std::int64_t vocab_;
  std::vector<std::string> fixed_;
};

/// Orders of nodes: kind after kind, begun at every place; of many nodes at 16 places.
std::vector<NodeOrder> orders_of(const std::vector<std::int64_t>& counts);

/// All numbers of nodes of each kind that are compared for money: powers of two and all; those of
/// one kind first.
std::vector<std::vector<std::int64_t>> node_counts(const Cluster& cluster);

// ---- the partition of layers over pipeline stages with which the simulator's time is least

/// A partition and its simulated time.
struct Partition {
  std::vector<std::int64_t> layers;  ///< of each stage; empty: none has room for all of them
  double seconds = 0;
  bool exact = false;  ///< whether no other partition is faster
  int simulations = 0;
};

/// The fastest partition under 1F1B, of those that give stage p at most `most[p]` layers. Dynamic
/// programming finds the partition whose lower bound is least: of the paths through the schedule's
/// graph that stay on one stage, and of those that also take the first and the last micro-batch
/// through all later stages. Branch and bound from there simulates partitions whose bound is below
/// the best time, at most `max_simulations`. O(stages * layers^2) and the simulations.
/// Other schedules take the partition of least bound. Nothing when no partition of a step comes
/// below `limit` seconds.
Partition best_partition(const LayoutTimes& times, std::int64_t layers,
                         const std::vector<std::int64_t>& most, int max_simulations,
                         double limit = std::numeric_limits<double>::infinity());

// The layout search: of all layouts of a model on a cluster the fastest that fit into memory, and
// those that give most for money.

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
  /// Where they allow none on all nodes: the largest number of ranks below that a layout may have.
  std::optional<std::int64_t> fewer_ranks;
  std::int64_t timed = 0;  ///< of them by the simulator
  double seconds = 0;
};

/// Times `deck`'s own layout, whose parallel.data is resolved, on the first of the nodes of
/// `order`. Throws DeckError when the cluster has fewer GPUs, or a kind of them is not known to run
/// it.
TimedLayout time_layout(const deck::Deck& deck, std::int64_t vocab, const Cluster& cluster,
                        const NodeOrder& order);

/// The fastest partition of `deck`'s layout, which keeps its other keys; under an interleaved
/// schedule the deck's own partition. Nothing when none fits.
std::optional<TimedLayout> repartition(const deck::Deck& deck, std::int64_t vocab,
                                       const Cluster& cluster, const NodeOrder& order);

/// Searches tensor x pipeline x data x micro-batch x schedule x interleave x recomputation x ZeRO x
/// sequence parallelism x order of nodes, each with its best partition. All layouts whose lower
/// bound is less than the time of the last of the ranking are timed. Overlap is always on: without
/// it no layout is faster. On a cluster without links only what changes no communication is
/// searched: the rest cannot be compared. `deck` is for GPUs.
SearchResult search_layouts(const deck::Deck& deck, std::int64_t vocab, const Cluster& cluster,
                            const SearchOptions& options = {});

// The step time that the planner expects of a run, to be printed next to the measured one.

/// What a step of a run should take.
struct ExpectedStep {
  StepTime time;
  std::string source;       ///< "the profile of NVIDIA H200 SXM", or "data sheets and formulas"
  bool calibrated = false;  ///< by measured passes; else no comparison is made
};

/// Times `deck`'s layout, whose parallel.data is resolved, on the first nodes of `cluster`. Throws
/// DeckError as time_layout().
ExpectedStep expected_step(const deck::Deck& deck, std::int64_t vocab, const Cluster& cluster);

/// One line: the time and its parts, or that it is not calibrated.
std::string describe(const ExpectedStep& expected);

/// Milliseconds of a measured step; parts are 0 where no timer measured them.
struct MeasuredStep {
  double ms = 0;
  double passes = 0;  ///< all passes, waiting for other stages included
  double reduction = 0;
  double optimizer = 0;
};

/// The measured step against a calibrated expectation; more than 10 % apart, the parts that differ
/// most.
std::string compare(const ExpectedStep& expected, const MeasuredStep& measured);

}  // namespace trireme::plan
