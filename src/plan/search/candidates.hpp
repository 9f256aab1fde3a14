// The layouts that a search compares: all that the deck's rules allow, on all orders of nodes.
#pragma once

#include <cstdint>
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

}  // namespace trireme::plan
