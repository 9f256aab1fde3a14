#include "plan/search/layout_search.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <tuple>

#include "core/clock.hpp"
#include "core/error.hpp"
#include "plan/run_plan.hpp"
#include "plan/search/partition.hpp"

namespace trireme::plan {
namespace {

// Simulations that a partition may take: while layouts are compared, and of those in the ranking.
constexpr int kFewSimulations = 8, kManySimulations = 300;
// What the exact partition may gain over that of few simulations.
constexpr double kSlack = 1.05;

std::vector<std::int64_t> divisors(std::int64_t number) {
  std::vector<std::int64_t> result;
  for (std::int64_t i = 1; i <= number; ++i)
    if (number % i == 0) result.push_back(i);
  return result;
}

/// The memory that ranks of each stage may use: that of their smallest GPU.
std::vector<double> memory_of_stages(const deck::Deck& deck, const NodeMap& nodes) {
  const std::int64_t of_stage = deck.parallel.tensor * *deck.parallel.data;
  std::vector<double> memory;
  for (std::int64_t p = 0; p < deck.parallel.pipeline; ++p) {
    double least = nodes.of(p * of_stage).gpu.memory;
    for (std::int64_t i = 1; i < (nodes.uniform() ? 1 : of_stage); ++i)
      least = std::min(least, nodes.of(p * of_stage + i).gpu.memory);
    memory.push_back(least);
  }
  return memory;
}

/// Plans stages of a model, each once.
class Memory {
 public:
  Memory(const deck::Deck& deck, std::int64_t vocab) : planner_(deck, vocab) {}

  double bytes(const deck::Deck& deck, int stage, std::int64_t layers) {
    const auto& p = deck.parallel;
    const std::int64_t m = deck.batch.global / (deck.batch.micro * *p.data);
    // Stages differ by their number of slots and by being the first or the last.
    const auto key = std::make_tuple(
        p.tensor, p.pipeline, *p.data, static_cast<int>(p.schedule), p.interleave, p.sequence,
        p.zero, deck.batch.micro, static_cast<int>(deck.recompute.granularity),
        std::min<std::int64_t>(m, 2 * p.pipeline * p.interleave), stage, layers);
    const auto [found, fresh] = bytes_.try_emplace(key, 0.0);
    if (fresh) found->second = static_cast<double>(planner_.stage(deck, stage, layers).total());
    return found->second;
  }

  /// Bytes of the rank with the highest peak; nothing when a stage has less `available`. Of middle
  /// stages an earlier one with as many layers keeps as many micro-batches, or more.
  std::optional<double> peak(const deck::Deck& deck, const std::vector<std::int64_t>& partition,
                             const std::vector<double>& available) {
    double most = 0;
    const int stages = static_cast<int>(partition.size());
    std::int64_t seen = -1;
    double least_available = 0;
    for (int stage = 0; stage < stages; ++stage) {
      const bool middle = stage > 0 && stage + 1 < stages;
      if (middle && partition[stage] <= seen && available[stage] >= least_available) continue;
      if (middle) {
        seen = partition[stage];
        least_available = available[stage];
      }
      most = std::max(most, bytes(deck, stage, partition[stage]));
      if (most > available[stage]) return std::nullopt;
    }
    return most;
  }

  /// The layers that each stage has room for; negative where it has none for its edges.
  std::vector<std::int64_t> most_layers(const deck::Deck& deck, const std::vector<double>& memory) {
    std::vector<std::int64_t> most;
    for (int stage = 0; stage < static_cast<int>(memory.size()); ++stage) {
      // Memory grows with the layers: bisection.
      std::int64_t fits = -1, not_fits = deck.model.layers + 1;
      const std::int64_t even = deck.model.layers / deck.parallel.pipeline + 1;
      while (not_fits - fits > 1) {
        std::int64_t middle = (fits + not_fits) / 2;
        if (fits < even && not_fits > 2 * even) middle = fits < even - 1 ? even - 1 : 2 * even;
        (bytes(deck, stage, middle) <= memory[stage] ? fits : not_fits) = middle;
      }
      most.push_back(fits);
    }
    return most;
  }

 private:
  StagePlanner planner_;
  std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t, int, std::int64_t, bool,
                      std::int64_t, std::int64_t, int, std::int64_t, int, std::int64_t>,
           double>
      bytes_;
};

std::optional<double> price_of(const Cluster& cluster, const NodeOrder& order, double seconds) {
  double dollars = 0;
  for (const int kind : order) {
    if (!cluster.nodes[kind].price) return std::nullopt;
    dollars += *cluster.nodes[kind].price / 3600 * seconds;
  }
  return dollars;
}

/// The layout of `deck` with its fastest partition; nothing when none fits, or none can take less
/// than `limit` seconds.
std::optional<TimedLayout> timed(const deck::Deck& deck, const LayoutTimes& times,
                                 const NodeMap& nodes, const NodeOrder& order, Memory& memory,
                                 int simulations, double limit, Partition* remembered = nullptr) {
  const std::vector<double> available = memory_of_stages(deck, nodes);
  const std::int64_t layers = deck.model.layers, stages = deck.parallel.pipeline;
  Partition partition;
  std::optional<double> peak;
  if (layers % stages == 0 && (stages == 1 || deck.parallel.interleave > 1)) {
    partition = {.layers = std::vector<std::int64_t>(stages, layers / stages), .exact = true};
    peak = memory.peak(deck, partition.layers, available);
    if (!peak) return std::nullopt;
  } else {
    // The last stage keeps one micro-batch, and others keep more: some stage has an equal share.
    const std::int64_t share = (layers + stages - 1) / stages;
    if (nodes.uniform() && memory.bytes(deck, 0, 0) > available[0]) return std::nullopt;
    if (nodes.uniform() && stages > 2 &&
        std::min({memory.bytes(deck, 0, share),
                  memory.bytes(deck, static_cast<int>(stages) - 2, share),
                  memory.bytes(deck, static_cast<int>(stages) - 1, share)}) > available[0])
      return std::nullopt;
    const std::vector<std::int64_t> any(stages, layers);
    // Without limits of memory it does not depend on ZeRO.
    if (remembered && !remembered->layers.empty())
      partition = *remembered;
    else
      partition = best_partition(times, layers, any, simulations, limit);
    if (partition.layers.empty()) return std::nullopt;
    if (remembered) *remembered = partition;
    if (times.step_time(partition.layers, false).total >= kSlack * limit) return std::nullopt;
    peak = memory.peak(deck, partition.layers, available);
    if (!peak) {
      const auto most = memory.most_layers(deck, available);
      if (std::ranges::min(most) < 0 ||
          std::accumulate(most.begin(), most.end(), std::int64_t{0}) < layers)
        return std::nullopt;
      partition = best_partition(times, layers, most, simulations, limit);
      if (partition.layers.empty()) return std::nullopt;
      peak = memory.peak(deck, partition.layers, available);
      if (!peak) return std::nullopt;
    }
    if (deck.parallel.schedule != deck::PipelineSchedule::one_f_one_b) partition.exact = false;
  }
  const bool final_ranking = simulations > kFewSimulations;
  TimedLayout result{.deck = deck,
                     .order = order,
                     .time = times.step_time(partition.layers, final_ranking),
                     .memory = static_cast<std::size_t>(*peak),
                     .exact_partition = partition.exact};
  result.deck.run.mixed_gpus |= !nodes.uniform();
  if (stages > 1 && deck.parallel.interleave == 1)
    result.deck.parallel.partition = partition.layers;
  result.dollars_per_step = price_of(nodes.cluster(), order, result.time.total);
  return result;
}

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
  Enumeration(const deck::Deck& deck, std::int64_t vocab, const Cluster& cluster,
              const SearchOptions& options)
      : deck_(deck), vocab_(vocab), cluster_(cluster), options_(options) {
    if (!cluster.has_links())
      for (const char* key : {"parallel.tensor", "parallel.pipeline", "parallel.data",
                              "parallel.zero", "parallel.sequence", "parallel.interleave"})
        options_.fixed.push_back(key);
  }

  /// All layouts on the nodes of `map`, with their bounds, appended to `found`.
  void add(const NodeMap& map, std::size_t order, std::vector<Candidate>& found) {
    const auto& given = deck_.parallel;
    const std::int64_t widest = std::gcd(deck_.model.heads, deck_.model.ffn);
    for (const std::int64_t tensor : values("parallel.tensor", given.tensor, divisors(widest))) {
      if (tensor > map.gpus()) continue;
      for (std::int64_t stages = 1; stages <= std::min(map.gpus() / tensor, deck_.model.layers + 2);
           ++stages) {
        if (!allowed("parallel.pipeline", given.pipeline, stages)) continue;
        if (stages == 1 && order > 0) continue;  // the order of data ranks does not matter
        if (map.gpus() % (tensor * stages) != 0 && !is_fixed("parallel.data")) continue;
        const std::int64_t data =
            is_fixed("parallel.data") ? given.data.value_or(1) : map.gpus() / (tensor * stages);
        if (tensor * stages * data > map.gpus() || deck_.batch.global % data != 0) continue;
        for (const std::int64_t micro :
             values("batch.micro", deck_.batch.micro, divisors(deck_.batch.global / data))) {
          if (deck_.batch.global / data % micro != 0 || micro > 64) continue;
          add_schedules(map, order, tensor, stages, data, micro, found);
        }
      }
    }
  }

  deck::Deck deck_of(const Candidate& candidate) const {
    deck::Deck deck = deck_;
    deck.parallel = candidate.parallel;
    deck.batch.micro = candidate.micro;
    if (!is_fixed("recompute.granularity")) {
      deck.recompute = {.granularity = candidate.granularity};
      if (candidate.granularity == deck::Granularity::full) {
        deck.recompute.method = deck::RecomputeMethod::uniform;
        deck.recompute.layers = 1;
      }
    }
    return deck;
  }

 private:
  bool is_fixed(const std::string& key) const {
    return std::ranges::find(options_.fixed, key) != options_.fixed.end();
  }
  template <typename T>
  bool allowed(const std::string& key, const T& given, const T& value) const {
    return !is_fixed(key) || given == value;
  }
  std::vector<std::int64_t> values(const std::string& key, std::int64_t given,
                                   std::vector<std::int64_t> all) const {
    return is_fixed(key) ? std::vector<std::int64_t>{given} : all;
  }

  void add_schedules(const NodeMap& map, std::size_t order, std::int64_t tensor,
                     std::int64_t stages, std::int64_t data, std::int64_t micro,
                     std::vector<Candidate>& found) {
    using enum deck::PipelineSchedule;
    const std::int64_t micro_batches = deck_.batch.global / data / micro;
    const auto& given = deck_.parallel;
    for (const bool sequence : {false, true}) {
      if (sequence && (tensor == 1 || deck_.model.sequence % tensor != 0)) continue;
      if (tensor > 1 && !allowed("parallel.sequence", given.sequence, sequence)) continue;
      for (const auto schedule : {one_f_one_b, zero_bubble, interleaved}) {
        if (schedule != one_f_one_b && stages == 1) continue;
        if (!allowed("parallel.schedule", given.schedule, schedule)) continue;
        const std::int64_t most = schedule == interleaved ? deck_.model.layers / stages : 1;
        for (std::int64_t chunks = schedule == interleaved ? 2 : 1; chunks <= most; ++chunks) {
          if (chunks > 1 &&
              (deck_.model.layers % (stages * chunks) != 0 || micro_batches % stages != 0))
            continue;
          if (!allowed("parallel.interleave", given.interleave, chunks)) continue;
          Candidate candidate{.parallel = given, .micro = micro, .order = order};
          candidate.parallel.tensor = tensor;
          candidate.parallel.pipeline = stages;
          candidate.parallel.data = data;
          if (!is_fixed("parallel.partition")) candidate.parallel.partition.reset();
          candidate.parallel.schedule = schedule;
          candidate.parallel.interleave = chunks;
          candidate.parallel.sequence = sequence;
          candidate.parallel.overlap = {true, true, true};
          add_variants(map, candidate, found);
        }
      }
    }
  }

  void add_variants(const NodeMap& map, Candidate candidate, std::vector<Candidate>& found) {
    using enum deck::Granularity;
    deck::Deck deck = deck_of(candidate);
    const ModelShape shape = model_shape(deck, vocab_);
    const LayoutTimes times(deck, shape, map);
    const bool zero_bubble = deck.parallel.schedule == deck::PipelineSchedule::zero_bubble;
    if (!times.computable() || (zero_bubble && !times.divides_backward())) return;
    for (const auto granularity : {none, selective, full}) {
      if (!allowed("recompute.granularity", deck_.recompute.granularity, granularity)) continue;
      if (zero_bubble && granularity != none) continue;
      candidate.granularity = granularity;
      deck = deck_of(candidate);
      for (std::int64_t zero = 0; zero <= 3; ++zero) {
        if (!allowed("parallel.zero", deck_.parallel.zero, zero)) continue;
        // Without data ranks ZeRO does nothing.
        if (*candidate.parallel.data == 1 && zero > 0 && !is_fixed("parallel.zero")) continue;
        candidate.parallel.zero = deck.parallel.zero = zero;
        candidate.bound = times.lower_bound();
        found.push_back(candidate);
      }
    }
  }

  const deck::Deck& deck_;
  std::int64_t vocab_;
  const Cluster& cluster_;
  SearchOptions options_;
};

/// Orders of nodes: kind after kind, begun at every place; of many nodes at 16 places.
std::vector<NodeOrder> orders_of(const std::vector<std::int64_t>& counts) {
  NodeOrder order;
  for (std::size_t kind = 0; kind < counts.size(); ++kind)
    order.insert(order.end(), counts[kind], static_cast<int>(kind));
  std::set<NodeOrder> orders;
  const std::size_t step = std::max<std::size_t>(order.size() / 16, 1);
  for (std::size_t i = 0; i < order.size(); i += step) {
    orders.insert(order);
    std::ranges::rotate(order, order.begin() + static_cast<std::ptrdiff_t>(step));
  }
  return {orders.begin(), orders.end()};
}

/// The `top` fastest layouts on these numbers of nodes.
std::vector<TimedLayout> fastest(const deck::Deck& deck, std::int64_t vocab, const Cluster& cluster,
                                 const std::vector<std::int64_t>& counts, int top, Memory& memory,
                                 const SearchOptions& options, SearchResult& result) {
  const std::vector<NodeOrder> orders = orders_of(counts);
  std::vector<std::unique_ptr<NodeMap>> maps;
  std::vector<Candidate> candidates;
  Enumeration enumeration(deck, vocab, cluster, options);
  for (std::size_t i = 0; i < orders.size(); ++i) {
    maps.push_back(std::make_unique<NodeMap>(cluster, orders[i]));
    enumeration.add(*maps[i], i, candidates);
  }
  result.considered += static_cast<std::int64_t>(candidates.size());
  std::ranges::stable_sort(candidates, {}, &Candidate::bound);
  std::vector<TimedLayout> best;
  const auto sort = [&] {
    std::ranges::stable_sort(best, {}, [](const TimedLayout& t) { return t.time.total; });
    if (std::ssize(best) > top) best.resize(top);
  };
  // Layouts that differ in ZeRO share their pipeline.
  struct Pipeline {
    deck::Deck deck;
    std::unique_ptr<LayoutTimes> times;
    Partition partition;
  };
  std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, int, std::int64_t,
                      bool, int, std::size_t>,
           Pipeline>
      pipelines;
  const auto evaluate = [&](const Candidate& candidate, int simulations, double limit) {
    const auto& p = candidate.parallel;
    Pipeline& pipeline = pipelines[{p.tensor, p.pipeline, *p.data, candidate.micro,
                                    static_cast<int>(p.schedule), p.interleave, p.sequence,
                                    static_cast<int>(candidate.granularity), candidate.order}];
    const NodeMap& map = *maps[candidate.order];
    pipeline.deck = enumeration.deck_of(candidate);
    if (!pipeline.times)
      pipeline.times =
          std::make_unique<LayoutTimes>(pipeline.deck, model_shape(pipeline.deck, vocab), map);
    Partition* remembered = simulations == kFewSimulations ? &pipeline.partition : nullptr;
    return timed(pipeline.deck, *pipeline.times, map, orders[candidate.order], memory, simulations,
                 limit, remembered);
  };
  constexpr double kNoLimit = std::numeric_limits<double>::infinity();
  const auto limit = [&] { return std::ssize(best) == top ? best.back().time.total : kNoLimit; };
  struct Found {
    double seconds;
    bool exact;
    const Candidate* candidate;
  };
  std::vector<Found> found;
  for (const Candidate& candidate : candidates) {
    if (candidate.bound >= limit()) break;
    auto layout = evaluate(candidate, kFewSimulations, limit());
    if (!layout) continue;
    ++result.timed;
    const bool exact = layout->exact_partition || candidate.parallel.pipeline == 1 ||
                       candidate.parallel.schedule != deck::PipelineSchedule::one_f_one_b;
    found.push_back({layout->time.total, exact, &candidate});
    best.push_back(*std::move(layout));
    sort();
  }
  // The partitions of the ranking, exactly, and their messages.
  std::ranges::stable_sort(found, {}, &Found::seconds);
  best.clear();
  for (const auto& [seconds, exact, candidate] : found) {
    if (seconds >= (exact ? 1 : kSlack) * limit()) continue;
    if (auto layout = evaluate(*candidate, kManySimulations, kNoLimit)) {
      best.push_back(*std::move(layout));
      sort();
    }
  }
  return best;
}

/// All numbers of nodes of each kind that are compared for money: powers of two and all.
std::vector<std::vector<std::int64_t>> node_counts(const Cluster& cluster) {
  std::vector<std::vector<std::int64_t>> all = {{}};
  for (const NodeKind& kind : cluster.nodes) {
    std::vector<std::int64_t> counts = {0};
    for (std::int64_t count = 1; count < kind.count; count *= 2) counts.push_back(count);
    counts.push_back(kind.count);
    std::vector<std::vector<std::int64_t>> longer;
    for (const auto& chosen : all)
      for (const std::int64_t count : counts) {
        longer.push_back(chosen);
        longer.back().push_back(count);
      }
    all = longer;
  }
  std::erase_if(all, [](const auto& counts) { return std::ranges::max(counts) == 0; });
  return all;
}

}  // namespace

TimedLayout time_layout(const deck::Deck& deck, std::int64_t vocab, const Cluster& cluster,
                        const NodeOrder& order) {
  const NodeMap map(cluster, order);
  const std::int64_t ranks = deck.parallel.tensor * deck.parallel.pipeline * *deck.parallel.data;
  if (ranks > map.gpus())
    throw DeckError(
        "the layout has {} ranks (parallel.tensor * pipeline * data), but cluster '{}' has {} GPUs",
        ranks, cluster.name, map.gpus());
  const LayoutTimes times(deck, model_shape(deck, vocab), map);
  if (!times.computable())
    throw DeckError("precision.compute = {}: a kind of GPU of cluster '{}' has no peak for it",
                    name_of(deck.precision.compute), cluster.name);
  Memory memory(deck, vocab);
  const auto partition = deck::layers_per_stage(deck);
  TimedLayout result{.deck = deck, .order = order, .time = times.step_time(partition)};
  for (int stage = 0; stage < times.stages(); ++stage)
    result.memory = std::max(result.memory,
                             static_cast<std::size_t>(memory.bytes(deck, stage, partition[stage])));
  result.dollars_per_step = price_of(cluster, order, result.time.total);
  return result;
}

std::optional<TimedLayout> repartition(const deck::Deck& deck, std::int64_t vocab,
                                       const Cluster& cluster, const NodeOrder& order) {
  if (deck.parallel.interleave > 1) return std::nullopt;
  const NodeMap map(cluster, order);
  const LayoutTimes times(deck, model_shape(deck, vocab), map);
  Memory memory(deck, vocab);
  return timed(deck, times, map, order, memory, kManySimulations,
               std::numeric_limits<double>::infinity());
}

SearchResult search_layouts(const deck::Deck& deck, std::int64_t vocab, const Cluster& cluster,
                            const SearchOptions& options) {
  const Stopwatch watch;
  SearchResult result;
  Memory memory(deck, vocab);
  std::vector<std::int64_t> all;
  for (const NodeKind& kind : cluster.nodes) all.push_back(kind.count);
  result.ranked = fastest(deck, vocab, cluster, all, options.top, memory, options, result);
  if (cluster.has_prices()) {
    std::vector<TimedLayout> found;
    for (const auto& counts : node_counts(cluster)) {
      if (counts == all) {
        if (!result.ranked.empty()) found.push_back(result.ranked.front());
        continue;
      }
      auto best = fastest(deck, vocab, cluster, counts, 1, memory, options, result);
      if (!best.empty()) found.push_back(std::move(best.front()));
    }
    std::ranges::stable_sort(found, {}, [](const TimedLayout& t) { return t.time.total; });
    const double steps = static_cast<double>(deck::total_iterations(deck));
    for (TimedLayout& layout : found) {
      if (options.budget && *layout.dollars_per_step * steps > *options.budget) continue;
      if (result.pareto.empty() ||
          *layout.dollars_per_step < *result.pareto.back().dollars_per_step)
        result.pareto.push_back(std::move(layout));
    }
    if (options.budget) {
      std::erase_if(result.ranked, [&](const TimedLayout& layout) {
        return *layout.dollars_per_step * steps > *options.budget;
      });
      if (result.ranked.empty() && !result.pareto.empty())
        result.ranked.push_back(result.pareto.front());
    }
  }
  result.seconds = watch.seconds();
  return result;
}

}  // namespace trireme::plan
