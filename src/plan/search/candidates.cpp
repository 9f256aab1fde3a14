#include "plan/search/candidates.hpp"

#include <algorithm>
#include <numeric>
#include <set>

namespace trireme::plan {
namespace {

std::vector<std::int64_t> divisors(std::int64_t number) {
  std::vector<std::int64_t> result;
  for (std::int64_t i = 1; i <= number; ++i)
    if (number % i == 0) result.push_back(i);
  return result;
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

void Enumeration::add(const NodeMap& map, std::size_t order, std::vector<Candidate>& found) const {
  const auto& given = deck_.parallel;
  const std::int64_t kv_heads = deck_.model.kv_heads.value_or(deck_.model.heads);
  const std::int64_t widest = std::gcd(deck_.model.heads, deck_.model.ffn);
  for (const std::int64_t tensor : values("parallel.tensor", given.tensor, divisors(widest))) {
    if (tensor > map.gpus() || (kv_heads % tensor != 0 && tensor % kv_heads != 0)) continue;
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

}  // namespace trireme::plan
