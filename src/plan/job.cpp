#include "plan/job.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>

#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "plan/setup.hpp"

namespace trireme::plan {
namespace {

// What an estimate of the time counts on: a third of an A100's peak in bf16, and a core or two.
constexpr double kGpuFlops = 100e12, kHostFlops = 20e9;
constexpr double kMinute = 60, kDay = 24 * 60 * kMinute;
/// Start-up, evaluations and checkpoints, in addition to the iterations.
constexpr double kMargin = 15 * kMinute;

/// Whether `nodes` can have equally many of `ranks` each, without more than there are GPUs.
bool fits(std::int64_t ranks, std::int64_t nodes, std::int64_t gpus_per_node) {
  return ranks % nodes == 0 && (gpus_per_node == 0 || ranks / nodes <= gpus_per_node);
}

/// Whether the ranks of a tensor group, neighbours all, stay on one node each or fill whole nodes.
bool keeps_together(std::int64_t tensor, std::int64_t ranks_per_node) {
  return ranks_per_node % tensor == 0 || tensor % ranks_per_node == 0;
}

std::int64_t nodes_for(std::int64_t ranks, std::int64_t tensor, const deck::NodeKind& kind) {
  const std::int64_t gpus = kind.gpus;
  if (kind.nodes) {
    if (ranks % *kind.nodes != 0)
      throw UsageError(
          "--nodes {}: {} cannot be shared out equally among them (--ranks N starts others)",
          *kind.nodes, counted(ranks, "rank"));
    if (!fits(ranks, *kind.nodes, gpus))
      throw UsageError("--nodes {}: {} ranks are {} on each, which has {}; take {} or more",
                       *kind.nodes, ranks, ranks / *kind.nodes, counted(gpus, "GPU"),
                       counted((ranks + gpus - 1) / gpus, "node"));
    return *kind.nodes;
  }
  if (gpus == 0) return 1;
  std::int64_t fewest = 0;
  for (std::int64_t nodes = (ranks + gpus - 1) / gpus; nodes <= ranks; ++nodes) {
    if (!fits(ranks, nodes, gpus)) continue;
    if (fewest == 0) fewest = nodes;
    // Twice the nodes are a high price for tensor ranks that are together.
    if (nodes >= 2 * fewest) break;
    if (keeps_together(tensor, ranks / nodes)) return nodes;
  }
  return fewest;
}

/// All GPUs of a heterogeneous job.
std::int64_t count_gpus(const std::vector<deck::NodeKind>& kinds) {
  std::int64_t count = 0;
  for (const deck::NodeKind& kind : kinds) count += kind.nodes.value_or(1) * kind.gpus;
  return count;
}

/// `name` for schedulers and file names.
std::string plain_name(std::string name) {
  std::replace_if(
      name.begin(), name.end(),
      [](unsigned char c) { return !std::isalnum(c) && c != '-' && c != '_' && c != '.'; }, '_');
  return name.empty() ? "trireme" : name;
}

void choose_time(Job& job, const deck::Deck& deck, std::int64_t ranks, double flops_per_token) {
  const JobRequest& request = job.request;
  if (request.seconds) {
    job.seconds = *request.seconds;
    job.why_seconds = "as requested";
    return;
  }
  const bool limited = request.launcher == Launcher::slurm;
  if (deck.train.exit_duration) {
    const double seconds = deck::in_seconds(*deck.train.exit_duration);
    job.seconds = seconds + kMargin;
    job.why_seconds = fmt::format("train.exit_duration = {}", human_duration(seconds));
    if (limited) job.why_seconds += fmt::format(", and {} more", human_duration(kMargin));
    return;
  }
  const bool on_gpus = request.gpus_per_node > 0 || !request.kinds.empty();
  const double flops = flops_per_token * static_cast<double>(deck.model.sequence) *
                       static_cast<double>(deck::total_samples(deck));
  const double seconds = flops / (static_cast<double>(ranks) * (on_gpus ? kGpuFlops : kHostFlops));
  const double rounded = std::ceil((seconds + kMargin) / kMargin) * kMargin;
  job.seconds = std::min(rounded, kDay);
  job.why_seconds =
      fmt::format("{:.1e} FLOPs at {} take {}; {}", flops,
                  on_gpus ? "100 TFLOP/s a GPU" : "20 GFLOP/s a rank", human_duration(seconds),
                  !limited         ? "nothing limits it"
                  : rounded > kDay ? "a job is requeued after a day at most"
                                   : "rounded up, with time to start");
}

}  // namespace

JobComponent place(std::int64_t ranks, std::int64_t tensor, const deck::NodeKind& kind) {
  const std::int64_t nodes = nodes_for(ranks, tensor, kind);
  return {.nodes = nodes, .ranks_per_node = ranks / nodes, .gpu = kind.gpu};
}

std::int64_t ranks_for(const deck::Deck& deck, const JobRequest& request) {
  const std::int64_t copy = deck.parallel.tensor * deck.parallel.pipeline;
  if (request.ranks) return *request.ranks;
  if (!request.kinds.empty() && !deck.parallel.data) return count_gpus(request.kinds);
  if (deck.parallel.data || request.gpus_per_node == 0)
    return copy * deck.parallel.data.value_or(1);
  const std::int64_t gpus = request.gpus_per_node;
  const std::int64_t there = request.nodes.value_or((copy + gpus - 1) / gpus) * gpus;
  if (there < copy)
    throw UsageError(
        "--nodes {}: {} cannot hold one copy of the model, parallel.tensor * parallel.pipeline = "
        "{}",
        *request.nodes, counted(there, "GPU"), copy);
  return there / copy * copy;
}

Job make_job(const deck::Deck& deck, const JobRequest& request, double flops_per_token) {
  const grid::Layout layout = plan::layout(deck);
  const std::int64_t ranks = layout.ranks();
  Job job{.request = request, .name = plain_name(deck.run.name), .run_folder = deck.run.output};
  job.about = fmt::format("{} = tensor {} x pipeline {} x data {}", counted(ranks, "rank"),
                          layout.tensor, layout.pipeline, layout.data);
  if (request.kinds.empty()) {
    job.components = {
        place(ranks, deck.parallel.tensor, {request.nodes, request.gpu, request.gpus_per_node})};
  } else if (count_gpus(request.kinds) != ranks) {
    throw UsageError(
        "the {} kinds of nodes have {} GPUs, but the layout has {} ranks: each GPU of "
        "a heterogeneous job gets one rank",
        request.kinds.size(), count_gpus(request.kinds), ranks);
  } else {
    for (const deck::NodeKind& kind : request.kinds)
      job.components.push_back({kind.nodes.value_or(1), kind.gpus, kind.gpu});
  }
  choose_time(job, deck, ranks, flops_per_token);
  return job;
}

}  // namespace trireme::plan
