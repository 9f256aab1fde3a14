// The layouts that a search compares: all that the deck's rules allow, on all orders of nodes; and
// their partitions.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "deck/deck.hpp"
#include "plan/search/step_time.hpp"

namespace trireme::plan {

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

 private:
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

}  // namespace trireme::plan
