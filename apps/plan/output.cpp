#include "plan/output.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "core/files.hpp"
#include "core/system/process.hpp"
#include "core/text.hpp"
#include "deck/load.hpp"
#include "model/families/registry.hpp"
#include "pipeline/schedule.hpp"
#include "plan/job.hpp"
#include "plan/setup.hpp"
#include "report/runs/run_history.hpp"

namespace trireme::plan_app {
namespace {

using plan::TimedLayout;
using Json = nlohmann::ordered_json;

std::string partition_text(const TimedLayout& layout) {
  return fmt::format("{}", fmt::join(deck::layers_per_stage(layout.deck), "-"));
}

/// "8 x a100, 8 x a10": the nodes in the order of the ranks.
std::string order_text(const TimedLayout& layout, const plan::Cluster& cluster) {
  std::vector<std::string> words;
  for (std::size_t i = 0; i < layout.order.size();) {
    std::size_t end = i;
    while (end < layout.order.size() && layout.order[end] == layout.order[i]) ++end;
    words.push_back(fmt::format("{} x {}", end - i, cluster.nodes[layout.order[i]].gpu.name));
    i = end;
  }
  return fmt::format("{}", fmt::join(words, ", "));
}

std::string schedule_text(const deck::Parallel& parallel) {
  const std::string name(name_of(parallel.schedule));
  return parallel.interleave > 1 ? fmt::format("{} {}", name, parallel.interleave) : name;
}

std::string recompute_text(const deck::Recompute& recompute) {
  return std::string(name_of(recompute.granularity));
}

/// Names of the parts of a step, and the parts.
struct Part {
  const char* key;
  const char* words;
  double plan::StepTime::*seconds;
};
constexpr Part kParts[] = {
    {"compute", "computation", &plan::StepTime::compute},
    {"recompute", "recomputation", &plan::StepTime::recompute},
    {"tensor_communication", "tensor communication", &plan::StepTime::tensor},
    {"messages", "messages between stages", &plan::StepTime::messages},
    {"bubble", "pipeline bubble", &plan::StepTime::bubble},
    {"data_communication", "reduction over data ranks", &plan::StepTime::data},
    {"embedding_reduction", "reduction of the tied embedding", &plan::StepTime::embedding},
    {"optimizer", "optimizer", &plan::StepTime::optimizer},
};

double tokens_per_second(const TimedLayout& layout) {
  return static_cast<double>(layout.deck.batch.global * layout.deck.model.sequence) /
         layout.time.total;
}

Json to_object(const TimedLayout& layout, const Answer& answer) {
  const deck::Deck& deck = layout.deck;
  Json object;
  object["seconds"] = layout.time.total;
  object["pipeline_seconds"] = layout.time.pipeline();
  object["memory_bytes"] = layout.memory;
  object["tokens_per_second"] = tokens_per_second(layout);
  object["ranks"] = layout.ranks();
  object["tensor"] = deck.parallel.tensor;
  object["pipeline"] = deck.parallel.pipeline;
  object["data"] = *deck.parallel.data;
  object["micro"] = deck.batch.micro;
  object["global"] = deck.batch.global;
  object["partition"] = partition_text(layout);
  object["schedule"] = name_of(deck.parallel.schedule);
  object["interleave"] = deck.parallel.interleave;
  object["recompute"] = recompute_text(deck.recompute);
  object["zero"] = deck.parallel.zero;
  object["sequence"] = deck.parallel.sequence;
  object["nodes"] = order_text(layout, *answer.cluster);
  object["exact_partition"] = layout.exact_partition;
  if (layout.dollars_per_step) {
    object["dollars_per_step"] = *layout.dollars_per_step;
    object["dollars"] = *layout.dollars_per_step * static_cast<double>(answer.iterations);
  }
  for (const Part& part : kParts) object["parts"][part.key] = layout.time.*part.seconds;
  return object;
}

std::vector<std::string> table_row(const std::string& name, const TimedLayout& layout,
                                   const Answer& answer) {
  const deck::Parallel& parallel = layout.deck.parallel;
  std::vector<std::string> row = {
      name,
      schedule_text(parallel),
      recompute_text(layout.deck.recompute),
      parallel.pipeline > 1 ? partition_text(layout) : "-",
      fmt::format("{}", parallel.tensor),
      fmt::format("{}", parallel.pipeline),
      fmt::format("{}", *parallel.data),
      fmt::format("{}", layout.deck.batch.micro),
      fmt::format("{}", parallel.zero),
      parallel.tensor > 1 ? (parallel.sequence ? "yes" : "no") : "-",
      fmt::format("{:.1f}", layout.time.total * 1e3),
      fmt::format("{:.1f}", static_cast<double>(layout.memory) / (1 << 30)),
      fmt::format("{:.1f}", 100 * layout.time.bubble / layout.time.total)};
  if (answer.cluster->has_prices())
    row.push_back(
        fmt::format("{:.0f}", *layout.dollars_per_step * static_cast<double>(answer.iterations)));
  return row;
}

std::vector<std::string> table_head(const Answer& answer) {
  std::vector<std::string> head = {"layout", "schedule", "recompute", "partition", "tensor",
                                   "stages", "data",     "micro",     "zero",      "sequence",
                                   "ms",     "GiB",      "bubble %"};
  if (answer.cluster->has_prices()) head.push_back("dollars");
  return head;
}

/// What `best` does better than `given`, the largest gain first.
std::string why_slower(const TimedLayout& given, const TimedLayout& best) {
  std::vector<std::pair<double, const Part*>> gains;
  for (const Part& part : kParts)
    gains.emplace_back(given.time.*part.seconds - best.time.*part.seconds, &part);
  std::ranges::sort(gains, [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string text = fmt::format("The given layout takes {:.1f} % longer than the best:",
                                 100 * (given.time.total / best.time.total - 1));
  const char* separator = " ";
  for (const auto& [seconds, part] : gains) {
    if (seconds < 0.005 * given.time.total) break;
    text += fmt::format("{}{:.1f} ms more {}", separator, seconds * 1e3, part->words);
    separator = ", ";
  }
  return text + ".\n";
}

std::string csv_number(double value) { return fmt::format("{:.6g}", value); }

}  // namespace

std::string why_no_layout(const Answer& answer) {
  const auto& fewer = answer.search.fewer_ranks;
  if (!fewer && answer.search.considered == 0)
    return "no layout that the deck allows can be timed on these GPUs";
  if (!fewer) return "no layout fits into the GPUs' memory (and the budget)";
  return fmt::format(
      "no layout has {} (parallel.tensor * pipeline * data): tensor ranks divide model.heads and "
      "model.ffn, data ranks batch.global, and stages are at most model.layers + 2; {} is the "
      "largest number below with a layout",
      counted(answer.cluster->gpus(), "rank"), *fewer);
}

std::string to_text(const Answer& answer) {
  const plan::Cluster& cluster = *answer.cluster;
  const auto& ranked = answer.search.ranked;
  TableRows rows = {table_head(answer)};
  if (answer.given) rows.push_back(table_row("given", *answer.given, answer));
  if (answer.repartition && answer.given &&
      answer.repartition->time.total < answer.given->time.total * 0.999)
    rows.push_back(table_row("its best partition", *answer.repartition, answer));
  for (std::size_t i = 0; i < ranked.size(); ++i)
    rows.push_back(table_row(fmt::format("{}", i + 1), ranked[i], answer));
  std::string text = fmt::format("cluster    {}: {} GPUs; {} layouts, {} simulated, {:.2f} s\n",
                                 cluster.name, cluster.gpus(), answer.search.considered,
                                 answer.search.timed, answer.search.seconds);
  if (!cluster.has_links())
    text +=
        "links      not in the cluster file: communication takes no time, and only the partition, "
        "micro-batches and recomputation are searched\n";
  if (!answer.given_problem.empty()) text += fmt::format("given      {}\n", answer.given_problem);
  text += fmt::format("\n{}", aligned_table(rows, 4));
  if (answer.given) {
    text += fmt::format("\nA step of the given layout, {:.1f} ms, on its busiest stage:\n",
                        answer.given->time.total * 1e3);
    for (const Part& part : kParts) {
      const double seconds = answer.given->time.*part.seconds;
      if (seconds != 0)
        text += fmt::format("  {:<32}{:>10.1f} ms {:>6.1f} %\n", part.words, seconds * 1e3,
                            100 * seconds / answer.given->time.total);
    }
    if (!ranked.empty() && ranked[0].time.total < answer.given->time.total)
      text += why_slower(*answer.given, ranked[0]);
  }
  if (ranked.empty()) {
    std::string why = why_no_layout(answer);
    why[0] = 'N';
    text += fmt::format("\n{}.\n", why);
  }
  if (!answer.search.pareto.empty()) {
    TableRows front = {{"nodes", "ms", "dollars", "layout"}};
    for (const TimedLayout& layout : answer.search.pareto)
      front.push_back(
          {order_text(layout, cluster), fmt::format("{:.1f}", layout.time.total * 1e3),
           fmt::format("{:.0f}", *layout.dollars_per_step * static_cast<double>(answer.iterations)),
           fmt::format("tensor {} x pipeline {} x data {}", layout.deck.parallel.tensor,
                       layout.deck.parallel.pipeline, *layout.deck.parallel.data)});
    text += fmt::format("\nTime for money, of {}:\n{}", counted(answer.iterations, "iteration"),
                        aligned_table(front, 1));
  }
  return text;
}

std::string to_json(const Answer& answer) {
  Json object;
  object["cluster"] = answer.cluster->name;
  object["gpus"] = answer.cluster->gpus();
  object["given"] = answer.given ? to_object(*answer.given, answer) : Json();
  if (!answer.given_problem.empty()) object["given_problem"] = answer.given_problem;
  if (answer.repartition) object["given_best_partition"] = to_object(*answer.repartition, answer);
  const auto& ranked = answer.search.ranked;
  if (ranked.empty()) object["problem"] = why_no_layout(answer);
  object["best"] = ranked.empty() ? Json() : to_object(ranked[0], answer);
  object["ranked"] = Json::array();
  for (const TimedLayout& layout : ranked) object["ranked"].push_back(to_object(layout, answer));
  object["pareto"] = Json::array();
  for (const TimedLayout& layout : answer.search.pareto)
    object["pareto"].push_back(to_object(layout, answer));
  object["links_known"] = answer.cluster->has_links();
  object["layouts"] = answer.search.considered;
  object["simulated"] = answer.search.timed;
  object["search_seconds"] = answer.search.seconds;
  return object.dump(2) + "\n";
}

std::string to_csv(const Answer& answer) {
  TableRows rows = {{"mbs", "tp", "dp", "pp", "node placement", "partition",
                     "estimated time (s/step)", "pipeline time", "DP all-reduce time",
                     "embedding layer all-reduce time", "price_per_step", "train_cost", "schedule",
                     "interleave", "recompute", "zero", "sequence", "memory_bytes"}};
  for (const TimedLayout& layout : answer.search.ranked) {
    const deck::Parallel& parallel = layout.deck.parallel;
    const auto price = layout.dollars_per_step;
    rows.push_back({fmt::format("{}", layout.deck.batch.micro), fmt::format("{}", parallel.tensor),
                    fmt::format("{}", *parallel.data), fmt::format("{}", parallel.pipeline),
                    order_text(layout, *answer.cluster), partition_text(layout),
                    csv_number(layout.time.total), csv_number(layout.time.pipeline()),
                    csv_number(layout.time.data), csv_number(layout.time.embedding),
                    price ? csv_number(*price) : "",
                    price ? csv_number(*price * static_cast<double>(answer.iterations)) : "",
                    std::string(name_of(parallel.schedule)), fmt::format("{}", parallel.interleave),
                    recompute_text(layout.deck.recompute), fmt::format("{}", parallel.zero),
                    parallel.sequence ? "true" : "false", fmt::format("{}", layout.memory)});
  }
  return csv_table(rows);
}

std::string to_deck(const TimedLayout& layout, const plan::Cluster& cluster,
                    const std::string& command) {
  return fmt::format(
             "# {}\n# Predicted: {:.1f} ms a step, {} on the GPU with the highest peak memory.\n"
             "# Nodes in the order of their ranks: {}.\n",
             command, layout.time.total * 1e3, human_bytes(static_cast<double>(layout.memory)),
             order_text(layout, cluster)) +
         deck::print_deck(layout.deck);
}

std::string to_timeline(const TimedLayout& layout, const plan::Cluster& cluster,
                        std::int64_t vocab) {
  const deck::Deck& deck = layout.deck;
  const plan::NodeMap nodes(cluster, layout.order);
  const plan::LayoutTimes times(deck, plan::model_shape(deck, vocab), nodes);
  const pipeline::PipelineShape shape = plan::pipeline_shape(deck);
  const std::vector<std::int64_t> partition = deck::layers_per_stage(deck);
  std::vector<pipeline::StepCosts> costs;
  for (int chunk = 0; chunk < shape.chunks; ++chunk)
    for (int stage = 0; stage < shape.stages; ++stage)
      costs.push_back(times.chunk_costs(stage, chunk, partition[stage] / shape.chunks));
  const std::vector<pipeline::StageSchedule> schedules = pipeline::make_schedules(shape);
  const pipeline::Simulation simulation =
      pipeline::simulate_stages(schedules, shape.micro_batches, costs,
                                deck.parallel.overlap.pipeline ? pipeline::SendRule::overlapped
                                                               : pipeline::SendRule::exchanged);
  std::string text = report::trace_head();
  for (int stage = 0; stage < shape.stages; ++stage) {
    text += report::trace_rank_line(stage, fmt::format("stage {}", stage));
    text += report::trace_lane_line(stage, 0, "compute");
    for (std::size_t i = 0; i < schedules[stage].size(); ++i) {
      const pipeline::Step& step = schedules[stage][i];
      const pipeline::StepTime& time = simulation.times[stage][i];
      text += report::trace_span_line(
          {.rank = stage,
           .name = std::string(report::kPassNames[static_cast<int>(step.kind)]),
           .iteration = 1,
           .micro_batch = step.micro_batch,
           .chunk = step.chunk,
           .start_ms = time.start * 1e3,
           .ms = (time.end - time.start) * 1e3});
    }
  }
  return text + report::trace_tail({.first = 1,
                                    .last = 1,
                                    .ranks = shape.stages,
                                    .bubble = simulation.bubble,
                                    .simulated_bubble = simulation.bubble});
}

std::string to_job(const TimedLayout& layout, const plan::Cluster& cluster, std::int64_t vocab,
                   const std::string& deck_file) {
  for (const int kind : layout.order)
    if (kind != layout.order.front())
      throw UsageError(
          "--write-job: several kinds of nodes; 'trireme-pretrain {} --print-job slurm "
          "--gpus-per-node' names them as Slurm does",
          deck_file);
  const std::filesystem::path programs = std::filesystem::path(program_path()).parent_path();
  const plan::JobRequest request{.launcher = plan::Launcher::slurm,
                                 .gpus_per_node = cluster.nodes[layout.order.front()].gpus,
                                 .folder = std::filesystem::current_path().string(),
                                 .program = (programs / "trireme-pretrain").string(),
                                 .deck = deck_file};
  return plan::to_script(
      plan::make_job(layout.deck, request, model::flops_per_token(layout.deck, vocab)));
}

}  // namespace trireme::plan_app
