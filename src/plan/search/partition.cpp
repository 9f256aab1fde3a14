#include "plan/search/candidates.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace trireme::plan {
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
