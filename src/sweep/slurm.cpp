#include "sweep/sweep.hpp"

#include <fmt/ranges.h>

#include <cmath>
#include <cstdlib>

#include "core/error.hpp"
#include "core/files.hpp"
#include "core/system/process.hpp"
#include "deck/sweep/sweep.hpp"
#include "deck/value.hpp"
#include "plan/job.hpp"

namespace trireme::sweep {
namespace {

namespace fs = std::filesystem;

constexpr const char* kList = "runs.txt";
constexpr const char* kScript = "job.sbatch";

/// "1-3,7": numbers in rising order.
std::string ranges(const std::vector<int>& numbers) {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    parts.push_back(last == i ? fmt::format("{}", numbers[i])
                              : fmt::format("{}-{}", numbers[i], numbers[last]));
    i = last + 1;
  }
  return fmt::format("{}", fmt::join(parts, ","));
}

/// The runs that have to be submitted, from 1.
std::vector<int> tasks_to_do(const PlannedSweep& sweep, const Queue& queue) {
  std::vector<int> tasks;
  for (std::size_t i = 0; i < sweep.runs.size(); ++i) {
    const bool queued = queue.contains(static_cast<int>(i) + 1);
    if (!queued && is_to_do(status_of(sweep, i).state)) tasks.push_back(static_cast<int>(i) + 1);
  }
  return tasks;
}

/// `path` between the double quotes of an #SBATCH line, where `%` begins a pattern.
std::string sbatch_pattern(const std::string& path) {
  std::string text;
  for (const char c : path) {
    if (c == '"' || c == '\\') text += '\\';
    if (c == '%') text += c;
    text += c;
  }
  return text;
}

/// Throws UsageError where a path or a command would begin a new line of the script or the list.
void require_lines(const PlannedSweep& sweep, const Launch& launch) {
  const auto require = [](const std::string& what, const std::string& text) {
    if (text.find_first_of("\n\r") != std::string::npos)
      throw UsageError("{} has a line break, which Slurm's script cannot hold: {}", what,
                       shell_word(text));
  };
  require("the working folder", fs::current_path().string());
  require("the sweep's folder", sweep.own_folder().string());
  for (const PlannedRun& run : sweep.runs)
    require("the command of run " + run.name(), shell_line(run_words(sweep, run, launch)));
}

/// The nodes of a run on GPUs: of the first of cluster.kinds that holds its ranks, since a job
/// array has one kind of nodes. Throws InvalidDeck if none does.
plan::JobComponent nodes_of(const PlannedRun& run, const std::vector<deck::NodeKind>& kinds) {
  for (const deck::NodeKind& kind : kinds) {
    const plan::JobComponent nodes =
        plan::place(run.need.ranks, run.deck.parallel.tensor, {.gpu = kind.gpu, .gpus = kind.gpus});
    if (!kind.nodes || nodes.nodes <= *kind.nodes) return nodes;
  }
  throw deck::InvalidDeck(fmt::format(
      "cluster.kinds = {}: run '{}' has {} ranks, more than one kind of nodes has GPUs",
      deck::Codec<std::vector<deck::NodeKind>>::write(kinds), run.name(), run.need.ranks));
}

/// sbatch's options for the ranks of `run`, from its deck's cluster section.
std::vector<std::string> resource_options(const PlannedRun& run) {
  const deck::Cluster& cluster = run.deck.cluster;
  std::vector<std::string> options;
  const auto add = [&](std::string_view name, const auto& value) {
    options.push_back(fmt::format("--{}={}", name, value));
  };
  if (cluster.kinds && run.need.on_gpus) {
    const plan::JobComponent nodes = nodes_of(run, *cluster.kinds);
    add("nodes", nodes.nodes);
    add("ntasks-per-node", nodes.ranks_per_node);
    add("gpus-per-node", plan::gpus_option(nodes));
  } else {
    add("ntasks", run.need.ranks);
  }
  if (cluster.partition) add("partition", *cluster.partition);
  if (cluster.account) add("account", *cluster.account);
  if (cluster.time)  // in minutes
    add("time", static_cast<std::int64_t>(std::ceil(deck::in_seconds(*cluster.time) / 60)));
  return options;
}

bool is_text(const fs::path& path, const std::string& text) {
  return fs::exists(path) && read_file(path) == text;
}

}  // namespace

std::string job_name(const PlannedSweep& sweep) {
  const std::string folder = fs::absolute(sweep.folder).lexically_normal().string();
  std::string stem;
  for (const char c : sweep.deck_path.stem().string())
    stem += deck::is_run_name(std::string("x") + c) && c != ',' ? c : '-';
  return fmt::format("{}-{:08x}", stem, deck::checksum(folder));
}

std::string run_list(const PlannedSweep& sweep, const Launch& launch) {
  std::string text;
  for (const PlannedRun& run : sweep.runs)
    text += fmt::format("{} {}\n", run.name(), shell_line(run_words(sweep, run, launch)));
  return text;
}

std::string job_script(const PlannedSweep& sweep) {
  const fs::path own = sweep.own_folder();
  const auto& modules = sweep.runs.front().deck.cluster.modules;
  return fmt::format(
      R"(#!/usr/bin/env bash
#SBATCH --job-name={}
#SBATCH --output="{}/slurm-%A_%a.out"
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@120
# Written by trireme-sweep: trains the run whose line of {} is the array task's number.
set -euo pipefail
refuse() {{ echo "$0: $1" >&2; exit 1; }}
{}cd {}
folder={}
line=$(sed -n "${{SLURM_ARRAY_TASK_ID}}p" "$folder/{}")
[ -n "$line" ] || refuse "{} has no line $SLURM_ARRAY_TASK_ID"
name=${{line%% *}} command=${{line#* }}
rm -f "$folder/$name.exit"
{}
# srun forgets --cpus-per-task unless it is told; ranks see all GPUs of their node, and so reach
# the others' memory.
if [ -n "${{SLURM_CPUS_PER_TASK:-}}" ]; then export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK; fi
if [ -n "${{SLURM_JOB_GPUS:-}}" ]; then export SLURM_GPU_BIND=none; fi
{}
# Slurm signals this shell alone: on USR1, two minutes before the limit, the run saves and stops.
eval "exec $command" >>"$folder/$name.out" 2>&1 &
run=$!
cancelled='' code=0 signalled=yes
trap 'signalled=yes; kill -USR1 "$run"' USR1
trap 'signalled=yes cancelled=yes; kill -TERM "$run"' TERM
while [ -n "$signalled" ]; do
  signalled='' code=0
  wait "$run" || code=$?
done
{}echo "$code" >"$folder/$name.exit"
if [ "$code" -eq 75 ] && [ -z "$cancelled" ]; then
  scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID"
fi
exit "$code"
)",
      job_name(sweep), sbatch_pattern(own.string()), kList,
      modules ? plan::module_lines(*modules) : "", shell_line({fs::current_path().string()}),
      shell_line({own.string()}), kList, kList,
      plan::note_checkpoint_lines("\"${folder%/*}/$name\""), plan::pmix_fence_lines(),
      plan::killed_rank_lines());
}

std::vector<std::vector<std::string>> sbatch_commands(const PlannedSweep& sweep,
                                                      const std::vector<int>& tasks,
                                                      std::optional<std::int64_t> jobs,
                                                      const std::string& words) {
  std::map<std::pair<int, std::vector<std::string>>, std::vector<int>> arrays;
  for (const int task : tasks) {
    const PlannedRun& run = sweep.runs[task - 1];
    arrays[{run.need.ranks, resource_options(run)}].push_back(task);
  }
  std::vector<std::vector<std::string>> commands;
  for (const auto& [key, numbers] : arrays) {
    const std::string limit = jobs ? fmt::format("%{}", *jobs) : "";
    std::vector<std::string> command{"sbatch", "--parsable",
                                     fmt::format("--array={}{}", ranges(numbers), limit)};
    command.insert(command.end(), key.second.begin(), key.second.end());
    for (const std::string& word : words_of(words)) command.push_back(word);
    command.push_back((sweep.own_folder() / kScript).string());
    commands.push_back(command);
  }
  return commands;
}

Queue read_queue(const PlannedSweep& sweep, bool must_answer) {
  if (!fs::exists(sweep.own_folder() / kScript)) return {};
  const ShellAnswer answer =
      ask_shell(fmt::format("squeue --noheader --array --name={} --format='%K %t'{}",
                            job_name(sweep), must_answer ? "" : " 2>/dev/null"));
  if (answer.code != 0 && must_answer)
    throw IoError("squeue ended with exit code {}: what is in the queue is not known", answer.code);
  Queue queue;
  std::istringstream lines(answer.output);
  std::string task, state;
  while (lines >> task >> state)
    if (const int number = std::atoi(task.c_str()); number > 0)
      queue[number] = state == "PD" || state == "RQ" ? State::queued : State::running;
  return queue;
}

std::string submit(const PlannedSweep& sweep, const Launch& launch,
                   std::optional<std::int64_t> jobs, const std::string& words) {
  require_lines(sweep, launch);
  const Queue queue = read_queue(sweep, /*must_answer=*/true);
  const std::string list = run_list(sweep, launch);
  const fs::path own = sweep.own_folder();
  if (!queue.empty() && !(is_text(own / kList, list) && is_text(deck_copy(sweep), sweep.deck_text)))
    throw deck::InvalidDeck(fmt::format(
        "{}: the deck has changed, but {} of its runs are in the queue; 'scancel --name={}' takes "
        "them out",
        sweep.deck_path.string(), queue.size(), job_name(sweep)));
  fs::create_directories(own);
  write_file_atomically(deck_copy(sweep), sweep.deck_text);
  write_file_atomically(own / kList, list);
  write_file_atomically(own / kScript, job_script(sweep));

  std::string text;
  for (const auto& command : sbatch_commands(sweep, tasks_to_do(sweep, queue), jobs, words)) {
    const std::string line = shell_line(command);
    const ShellAnswer answer = ask_shell(line);
    if (answer.code != 0) throw IoError("'{}' ended with exit code {}", line, answer.code);
    text += fmt::format("{}\n  job {}", line, answer.output);
  }
  return text + count_line(all_statuses(sweep, read_queue(sweep, /*must_answer=*/false))) + "\n";
}

std::string submission_text(const PlannedSweep& sweep, const Launch& launch,
                            std::optional<std::int64_t> jobs, const std::string& words) {
  require_lines(sweep, launch);
  const Queue queue = read_queue(sweep, /*must_answer=*/false);
  std::string text = fmt::format("== {}\n{}== {}\n{}== commands\n",
                                 (sweep.own_folder() / kScript).string(), job_script(sweep),
                                 (sweep.own_folder() / kList).string(), run_list(sweep, launch));
  for (const auto& command : sbatch_commands(sweep, tasks_to_do(sweep, queue), jobs, words))
    text += shell_line(command) + "\n";
  return text;
}

}  // namespace trireme::sweep
