#include "plan/search/layout_search.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <tuple>

#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "plan/run_plan.hpp"

namespace trireme::plan {
namespace {

// Simulations that a partition may take: while layouts are compared, and of those in the ranking.
constexpr int kFewSimulations = 8, kManySimulations = 300;
constexpr double kNoLimit = std::numeric_limits<double>::infinity();
// What the exact partition may gain over that of few simulations.
constexpr double kSlack = 1.05;

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

/// GPUs of the nodes that have the fewest.
int smallest_node(const Cluster& cluster) {
  const auto by_gpus = [](const NodeKind& a, const NodeKind& b) { return a.gpus < b.gpus; };
  return static_cast<int>(std::ranges::min_element(cluster.nodes, by_gpus)->gpus);
}

/// Plans stages of a model, each once.
class Memory {
 public:
  Memory(const deck::Deck& deck, std::int64_t vocab, const Cluster& cluster)
      : planner_(deck, vocab, smallest_node(cluster)) {}

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

/// The `top` fastest layouts on these numbers of nodes, of those whose step takes less than
/// `max_seconds`.
std::vector<TimedLayout> fastest(const deck::Deck& deck, std::int64_t vocab, const Cluster& cluster,
                                 const std::vector<std::int64_t>& counts, int top, Memory& memory,
                                 double max_seconds, const SearchOptions& options,
                                 SearchResult& result, Progress& meter) {
  const std::vector<NodeOrder> orders = orders_of(counts);
  std::vector<std::unique_ptr<NodeMap>> maps;
  std::vector<Candidate> candidates;
  const Enumeration enumeration(deck, vocab, cluster, options.fixed);
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
  const auto limit = [&] {
    return std::ssize(best) == top ? std::min(max_seconds, best.back().time.total) : max_seconds;
  };
  struct Found {
    double seconds;
    bool exact;
    const Candidate* candidate;
  };
  std::vector<Found> found;
  for (const Candidate& candidate : candidates) {
    if (candidate.bound >= limit()) break;
    auto layout = evaluate(candidate, kFewSimulations, limit());
    meter.update(static_cast<double>(result.timed));
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
    meter.update(static_cast<double>(result.timed));
    if (auto layout = evaluate(*candidate, kManySimulations, kNoLimit)) {
      if (layout->time.total >= max_seconds) continue;
      best.push_back(*std::move(layout));
      sort();
    }
  }
  return best;
}

}  // namespace

TimedLayout time_layout(const deck::Deck& deck, std::int64_t vocab, const Cluster& cluster,
                        const NodeOrder& order) {
  const NodeMap map(cluster, order);
  const std::int64_t ranks = deck.parallel.tensor * deck.parallel.pipeline * *deck.parallel.data;
  if (ranks > map.gpus())
    throw DeckError(
        "the layout has {} (parallel.tensor * pipeline * data), but cluster '{}' has {}",
        counted(ranks, "rank"), cluster.name, counted(map.gpus(), "GPU"));
  const LayoutTimes times(deck, model_shape(deck, vocab), map);
  if (!times.computable())
    throw DeckError("precision.compute = {}: a kind of GPU of cluster '{}' has no peak for it",
                    name_of(deck.precision.compute), cluster.name);
  Memory memory(deck, vocab, cluster);
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
  const NodeMap map(cluster, order);
  const LayoutTimes times(deck, model_shape(deck, vocab), map);
  Memory memory(deck, vocab, cluster);
  return timed(deck, times, map, order, memory, kManySimulations, kNoLimit);
}

SearchResult search_layouts(const deck::Deck& deck, std::int64_t vocab, const Cluster& cluster,
                            const SearchOptions& options) {
  const Stopwatch watch;
  SearchResult result;
  Progress meter("searching", "layout", /*total=*/0, options.progress);
  Memory memory(deck, vocab, cluster);
  std::vector<std::int64_t> all;
  for (const NodeKind& kind : cluster.nodes) all.push_back(kind.count);
  result.ranked =
      fastest(deck, vocab, cluster, all, options.top, memory, kNoLimit, options, result, meter);
  if (result.considered == 0) {
    const std::int64_t most =
        Enumeration(deck, vocab, cluster, options.fixed).most_ranks(cluster.gpus());
    if (most < cluster.gpus()) result.fewer_ranks = most;
  }
  if (cluster.has_prices()) {
    std::vector<TimedLayout> found;
    // A layout on these nodes that takes as long is beaten in time and money by one that is found.
    const auto limit_of = [&](const std::vector<std::int64_t>& counts) {
      double price = 0, limit = kNoLimit;
      for (std::size_t kind = 0; kind < counts.size(); ++kind)
        price += *cluster.nodes[kind].price / 3600 * static_cast<double>(counts[kind]);
      for (const TimedLayout& layout : found)
        if (price > 0)
          limit = std::min(limit, std::max(layout.time.total, *layout.dollars_per_step / price));
      return limit;
    };
    if (!result.ranked.empty()) found.push_back(result.ranked.front());
    for (const auto& counts : node_counts(cluster)) {
      if (counts == all) continue;
      auto best = fastest(deck, vocab, cluster, counts, 1, memory, limit_of(counts), options,
                          result, meter);
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

namespace {

// Steps that differ by less are as expected.
constexpr double kTolerance = 0.10;

}  // namespace

ExpectedStep expected_step(const deck::Deck& deck, std::int64_t vocab, const Cluster& cluster) {
  const NodeOrder order = all_nodes(cluster);
  ExpectedStep expected{.time = time_layout(deck, vocab, cluster, order).time, .calibrated = true};
  const NodeMap map(cluster, order);
  const std::int64_t ranks = deck.parallel.tensor * deck.parallel.pipeline * *deck.parallel.data;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const GpuKind& gpu = map.of(rank).gpu;
    expected.calibrated &= pass_times(gpu, model_shape(deck, vocab)).source != TimeSource::formula;
    if (expected.source.find(gpu.name) == std::string::npos)
      expected.source += (expected.source.empty() ? "the profile of " : ", ") + gpu.name;
  }
  if (!expected.calibrated) expected.source = "data sheets and formulas";
  return expected;
}

std::string describe(const ExpectedStep& expected) {
  const StepTime& time = expected.time;
  std::string text =
      fmt::format("expected   {:.1f} ms a step, by {}", 1e3 * time.total, expected.source);
  if (!expected.calibrated) return text + ": not calibrated, no measure of this run";
  text += fmt::format(": passes {:.1f}", 1e3 * time.pipeline());
  for (const auto& [name, seconds] :
       {std::pair{"reduction", time.data + time.embedding}, {"optimizer", time.optimizer}})
    if (seconds > 0) text += fmt::format(", {} {:.1f}", name, 1e3 * seconds);
  return text;
}

std::string compare(const ExpectedStep& expected, const MeasuredStep& measured) {
  const StepTime& time = expected.time;
  const double share = measured.ms / (1e3 * time.total) - 1;
  std::string text =
      fmt::format("expected   {:.1f} ms a step, measured {:.1f}: {:.1f} % {}", 1e3 * time.total,
                  measured.ms, 100 * std::abs(share), share > 0 ? "longer" : "shorter");
  if (std::abs(share) <= kTolerance) return text;
  if (measured.passes <= 0) return text + "; log.timers: true tells which part differs";
  const auto part = [&](const char* name, double seconds, double ms) {
    return std::pair{ms - 1e3 * seconds,
                     fmt::format("{} {:.1f} ms instead of {:.1f}", name, ms, 1e3 * seconds)};
  };
  const auto parts = {
      part("passes take", time.pipeline(), measured.passes),
      part("the reduction of gradients takes", time.data + time.embedding, measured.reduction),
      part("the optimizer takes", time.optimizer, measured.optimizer)};
  for (const auto& [difference, words] : parts)
    if (std::abs(difference) > 0.25 * std::abs(measured.ms - 1e3 * time.total))
      text += "; " + words;
  return text;
}

}  // namespace trireme::plan
