#include "plan/search/layout_search.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

#include "deck/checks/checks.hpp"

namespace trireme::plan {
namespace {

std::vector<std::int64_t> divisors(std::int64_t number) {
  std::vector<std::int64_t> result;
  for (std::int64_t i = 1; i <= number; ++i)
    if (number % i == 0) result.push_back(i);
  return result;
}

/// Whether a run accepts the layout of `deck`, whose partition is found later.
bool is_valid_layout(deck::Deck deck) {
  const std::int64_t stages = deck.parallel.pipeline;
  if (stages > deck.model.layers && !deck.parallel.partition) {
    deck.parallel.partition.emplace(stages, 0);
    deck.parallel.partition->back() = deck.model.layers;
  }
  return deck::obeys_layout_rules(deck);
}

}  // namespace

Enumeration::Enumeration(const deck::Deck& deck, std::int64_t vocab, const Cluster& cluster,
                         std::vector<std::string> fixed)
    : deck_(deck), vocab_(vocab), fixed_(std::move(fixed)) {
  if (!cluster.has_links())
    for (const char* key : {"parallel.tensor", "parallel.pipeline", "parallel.data",
                            "parallel.zero", "parallel.sequence", "parallel.interleave"})
      fixed_.push_back(key);
}

bool Enumeration::is_fixed(const std::string& key) const {
  return std::ranges::find(fixed_, key) != fixed_.end();
}

std::vector<std::int64_t> Enumeration::values(const std::string& key, std::int64_t given,
                                              std::vector<std::int64_t> all) const {
  return is_fixed(key) ? std::vector<std::int64_t>{given} : all;
}

std::vector<std::int64_t> Enumeration::tensor_sizes() const {
  const std::int64_t kv_heads = deck_.model.kv_heads.value_or(deck_.model.heads);
  const std::int64_t widest = std::gcd(deck_.model.heads, deck_.model.ffn);
  auto sizes = values("parallel.tensor", deck_.parallel.tensor, divisors(widest));
  std::erase_if(sizes, [&](auto size) { return deck::shards_of_kv_heads(kv_heads, size) == 0; });
  return sizes;
}

std::int64_t Enumeration::most_ranks(std::int64_t gpus) const {
  std::int64_t most = 0;
  const auto& given = deck_.parallel;
  const auto data_sizes =
      values("parallel.data", given.data.value_or(1), divisors(deck_.batch.global));
  for (const std::int64_t tensor : tensor_sizes())
    for (const std::int64_t data : data_sizes)
      for (std::int64_t stages = 1; stages <= deck_.model.layers + 2; ++stages)
        if (const std::int64_t ranks = tensor * data * stages;
            ranks <= gpus && allowed("parallel.pipeline", given.pipeline, stages))
          most = std::max(most, ranks);
  return most;
}

void Enumeration::add(const NodeMap& map, std::size_t order, std::vector<Candidate>& found) const {
  const auto& given = deck_.parallel;
  for (const std::int64_t tensor : tensor_sizes()) {
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

deck::Deck Enumeration::deck_of(const Candidate& candidate) const {
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

void Enumeration::add_schedules(const NodeMap& map, std::size_t order, std::int64_t tensor,
                                std::int64_t stages, std::int64_t data, std::int64_t micro,
                                std::vector<Candidate>& found) const {
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

void Enumeration::add_variants(const NodeMap& map, Candidate candidate,
                               std::vector<Candidate>& found) const {
  using enum deck::Granularity;
  deck::Deck deck = deck_of(candidate);
  const ModelShape shape = model_shape(deck, vocab_);
  const LayoutTimes times(deck, shape, map);
  const bool zero_bubble = deck.parallel.schedule == deck::PipelineSchedule::zero_bubble;
  if (!times.computable() || (zero_bubble && !times.divides_backward())) return;
  for (const auto granularity : {none, selective, full}) {
    if (!allowed("recompute.granularity", deck_.recompute.granularity, granularity)) continue;
    candidate.granularity = granularity;
    for (std::int64_t zero = 0; zero <= 3; ++zero) {
      if (!allowed("parallel.zero", deck_.parallel.zero, zero)) continue;
      // Without data ranks ZeRO does nothing.
      if (*candidate.parallel.data == 1 && zero > 0 && !is_fixed("parallel.zero")) continue;
      candidate.parallel.zero = zero;
      deck = deck_of(candidate);
      if (!is_valid_layout(deck)) continue;
      candidate.bound = times.lower_bound();
      found.push_back(candidate);
    }
  }
}

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
  std::ranges::stable_sort(all, {}, [](const auto& counts) {
    return std::ranges::count_if(counts, [](std::int64_t count) { return count > 0; });
  });
  return all;
}

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
// Times that differ by less are equal: sums in another order.
constexpr double kSame = 1e-12;

class Search {
 public:
  Search(const LayoutTimes& times, std::int64_t layers, const std::vector<std::int64_t>& most,
         int max_simulations, double seconds)
      : times_(times),
        layers_(static_cast<int>(layers)),
        stages_(times.stages()),
        most_(most),
        max_simulations_(max_simulations) {
    for (int p = 0; p < stages_; ++p) {
      work_.emplace_back();
      const int most_layers = static_cast<int>(std::min<std::int64_t>(most_[p], layers_));
      for (int n = 0; n <= most_layers; ++n) {
        const pipeline::StepCosts costs = times.chunk_costs(p, 0, n);
        // A stage that works longer than the limit alone is in no partition below it.
        const double work = costs.forward + costs.backward;
        if (n > 0 && times.micro_batches() * work >= seconds) break;
        work_[p].push_back(work);
      }
    }
    bound_stages();
  }

  /// Nothing unless a pipeline may take less than `limit`.
  Partition run(double limit) {
    // The bound is 1F1B's; another schedule may be below it.
    if (to_go_[0][0] == kNever || (times_.one_f_one_b() && to_go_[0][0] >= limit)) return {};
    chosen_.assign(stages_, 0);
    visit(0, 0, 0, 0);
    best_.exact = !stopped() || attained();
    return best_;
  }

 private:
  /// Layers that a stage may have at most.
  int limit(int stage) const { return static_cast<int>(work_[stage].size()) - 1; }

  /// No schedule is faster whose stage `p` has `n` layers, when the stages before it and after it
  /// work for `before` and `after`, messages included.
  double bound(int p, int n, double before, double after) const {
    const double own = work_[p][n], m = times_.micro_batches(), in_flight = stages_ - p;
    const double trip = before + own + after;
    const double stay = before + m * own;
    return m > in_flight ? std::max({trip, stay, trip + (m - in_flight) * own + after})
                         : std::max(trip, stay);
  }

  void bound_stages() {
    // Least work of the first p stages with u layers, and of those from p on with the others.
    const auto table = [&] {
      return std::vector<std::vector<double>>(stages_ + 1,
                                              std::vector<double>(layers_ + 1, kNever));
    };
    before_ = after_ = to_go_ = table();
    before_[0][0] = after_[stages_][layers_] = 0;
    to_go_[stages_][layers_] = 0;
    for (int p = 0; p < stages_; ++p)
      for (int u = 0; u <= layers_; ++u)
        for (int n = 0; n <= limit(p) && u + n <= layers_; ++n)
          before_[p + 1][u + n] =
              std::min(before_[p + 1][u + n], before_[p][u] + work_[p][n] + 2 * times_.transfer(p));
    for (int p = stages_ - 1; p >= 0; --p)
      for (int u = 0; u <= layers_; ++u)
        for (int n = 0; n <= limit(p) && u + n <= layers_; ++n) {
          const double message = p > 0 ? 2 * times_.transfer(p - 1) : 0;
          after_[p][u] = std::min(after_[p][u], after_[p + 1][u + n] + work_[p][n] + message);
        }
    for (int p = stages_ - 1; p >= 0; --p)
      for (int u = 0; u <= layers_; ++u) {
        if (before_[p][u] == kNever) continue;
        for (int n = 0; n <= limit(p) && u + n <= layers_; ++n) {
          if (to_go_[p + 1][u + n] == kNever) continue;
          to_go_[p][u] = std::min(
              to_go_[p][u],
              std::max(bound(p, n, before_[p][u], after_[p + 1][u + n]), to_go_[p + 1][u + n]));
        }
      }
  }

  bool stopped() const { return best_.simulations >= max_simulations_ || visited_ > max_visits_; }
  bool attained() const {
    return !best_.layers.empty() && best_.seconds <= to_go_[0][0] * (1 + kSame);
  }
  bool done() const { return stopped() || attained(); }

  /// Tries all partitions that begin with the first `p` of chosen_, which have `u` layers, take
  /// `before` and are bounded by `so_far`.
  void visit(int p, int u, double before, double so_far) {
    if (done()) return;
    ++visited_;
    if (p == stages_) {
      ++best_.simulations;
      const double seconds = times_.makespan(chosen_);
      if (best_.layers.empty() || seconds < best_.seconds * (1 - kSame)) {
        best_.layers = chosen_;
        best_.seconds = seconds;
      }
      return;
    }
    std::vector<std::pair<double, int>> choices;
    for (int n = 0; n <= limit(p) && u + n <= layers_; ++n) {
      if (to_go_[p + 1][u + n] == kNever) continue;
      choices.emplace_back(
          std::max({so_far, bound(p, n, before, after_[p + 1][u + n]), to_go_[p + 1][u + n]}), n);
    }
    // Of equal bounds the most even first.
    const double even = static_cast<double>(layers_ - u) / (stages_ - p);
    std::ranges::sort(choices, [&](const auto& a, const auto& b) {
      const float of_a = static_cast<float>(a.first), of_b = static_cast<float>(b.first);
      if (of_a != of_b) return of_a < of_b;
      return std::abs(a.second - even) < std::abs(b.second - even);
    });
    for (const auto& [least, n] : choices) {
      if (done()) return;
      if (!best_.layers.empty() && least >= best_.seconds * (1 - kSame)) continue;
      chosen_[p] = n;
      visit(p + 1, u + n, before + work_[p][n] + 2 * times_.transfer(p), least);
    }
  }

  const LayoutTimes& times_;
  const int layers_;
  const int stages_;
  const std::vector<std::int64_t>& most_;
  const int max_simulations_;
  /// Few simulations are for a quick look.
  const long long max_visits_ = 100 + 10LL * max_simulations_ * max_simulations_;
  std::vector<std::vector<double>> work_;  ///< by stage and number of layers
  std::vector<std::vector<double>> before_, after_;
  std::vector<std::vector<double>> to_go_;  ///< least bound of stages from p on after u layers
  std::vector<std::int64_t> chosen_;
  long long visited_ = 0;
  Partition best_;
};

}  // namespace

Partition best_partition(const LayoutTimes& times, std::int64_t layers,
                         const std::vector<std::int64_t>& most, int max_simulations, double limit) {
  limit -= times.after_pipeline();
  return Search(times, layers, most, max_simulations, limit).run(limit);
}

}  // namespace trireme::plan
