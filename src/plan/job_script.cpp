#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "core/system/shell.hpp"
#include "plan/job.hpp"
#include "plan/requeue.hpp"

namespace trireme::plan {
namespace {

/// Cores that a rank's threads of the host, its data and NCCL's are worth having on a GPU's host.
constexpr std::int64_t kCpusOfGpuRank = 8;
/// How long before the limit the ranks are asked for a checkpoint: ten minutes, or a fifth of a
/// shorter time. Slurm may send the signal a minute early.
constexpr double kSignalSeconds = 600, kSignalPart = 0.2;

std::string hours(double seconds) {
  const auto total = static_cast<std::int64_t>(seconds + 0.5);
  return fmt::format("{:02d}:{:02d}:{:02d}", total / 3600, total / 60 % 60, total % 60);
}

std::int64_t cpus_per_rank(const JobRequest& request) {
  return request.cpus_per_rank.value_or(request.gpus_per_node > 0 ? kCpusOfGpuRank : 1);
}

/// What a rank runs: in an image the program is on PATH.
std::string program(const JobRequest& request) {
  return request.image ? std::filesystem::path(request.program).filename().string()
                       : request.program;
}

/// A line for each word: the program, its deck, the overrides.
std::string command(const JobRequest& request) {
  std::string text = fmt::format("{} {}", shell_word(program(request)), shell_word(request.deck));
  for (const std::string& override : request.overrides) text += " \\\n  " + shell_word(override);
  return text + "\n";
}

/// The function with which a script refuses, and what both kinds of jobs look for.
std::string checks(const Job& job) {
  const JobRequest& request = job.request;
  std::string text = fmt::format("refuse() {{ echo \"{}: $1\" >&2; exit 1; }}\n", job.name);
  const auto need = [&](const char* test, const std::string& path, const std::string& message) {
    text += fmt::format("[ {} {} ] || refuse {}\n", test, shell_word(path), shell_word(message));
  };
  need("-r", request.deck,
       fmt::format("there is no deck {} in {} on this host", request.deck, request.folder));
  if (request.image)
    need("-r", *request.image, fmt::format("there is no image {} on this host", *request.image));
  else
    need("-x", request.program,
         fmt::format("there is no program {} on this host", request.program));
  return text;
}

std::string introduction(const Job& job) {
  return fmt::format(
      "# {}: {}; written by {} --print-job.\n"
      "# Time: {}.\n"
      "{}",
      job.name, job.about, std::filesystem::path(job.request.program).filename().string(),
      job.why_seconds, job.memory.empty() ? "" : fmt::format("# Memory: {}.\n", job.memory));
}

/// The #SBATCH lines.
std::string directives(const Job& job) {
  const JobRequest& request = job.request;
  std::string text;
  const auto line = [&](const std::string& option) { text += "#SBATCH --" + option + "\n"; };
  line("job-name=" + job.name);
  if (request.partition) line("partition=" + *request.partition);
  line(fmt::format("nodes={}", job.nodes));
  line(fmt::format("ntasks-per-node={}", job.ranks_per_node));
  if (request.gpus_per_node > 0) line(fmt::format("gpus-per-node={}", job.ranks_per_node));
  line(fmt::format("cpus-per-task={}", cpus_per_rank(request)));
  line("time=" + hours(job.seconds));
  line(fmt::format("signal=USR1@{}",
                   static_cast<int>(std::min(kSignalSeconds, kSignalPart * job.seconds))));
  line("requeue");
  line("open-mode=append");
  line("output=%x_%j.out");
  line("chdir=" + shell_word(request.folder));
  return text;
}

// Why srun gets these options: see jobs/common/job.sh.
std::string slurm_script(const Job& job) {
  const JobRequest& request = job.request;
  std::string text = "#!/bin/bash\n" + introduction(job) + directives(job) + "\n" + checks(job);
  text +=
      "command -v srun >/dev/null || refuse 'there is no srun here: submit this with sbatch'\n"
      "srun --mpi=list 2>&1 | grep -qw pmix || refuse 'srun has no --mpi=pmix (see srun "
      "--mpi=list)'\n";
  if (request.image) {
    text +=
        "srun --help 2>&1 | grep -q -- --container-image || refuse 'srun has no --container-image: "
        "pyxis is not installed here'\n";
    text += fmt::format(
        "\n"
        "# The run cannot see in which container it is: so it is told what continues it.\n"
        "container=(--container-image={0} --container-mounts={1} --container-workdir={2}\n"
        "  --no-container-remap-root)\n"  // or PMIx turns the ranks away
        "export TRIREME_CONTAINER=\"${{container[*]@Q}}\"\n",
        shell_word(*request.image), shell_word(request.folder + ":" + request.folder),
        shell_word(request.folder));
  }
  text += fmt::format(
      "\n{}# A rank that fails takes the others with it after half a minute; one that ends with 75 "
      "must "
      "not.\n"
      "srun --mpi=pmix --cpus-per-task={} --kill-on-bad-exit=0 --wait=30 \\\n",
      note_checkpoint_lines(shell_word(job.run_folder)), cpus_per_rank(request));
  if (request.gpus_per_node > 0)
    text += "  --gpu-bind=none \\\n";  // ranks choose theirs, and reach the others' memory
  if (request.image) text += "  \"${container[@]}\" \\\n";
  text += "  " + command(request);
  text += fmt::format(
      "code=$?\n"
      "{}"
      "# 75: stopped early with a checkpoint, from which the same job goes on.\n"
      "if [ $code -eq 75 ]; then scontrol requeue \"$SLURM_JOB_ID\"; fi\n"
      "exit $code\n",
      killed_rank_lines());
  return text;
}

std::string mpirun_script(const Job& job) {
  const JobRequest& request = job.request;
  std::string text = "#!/bin/bash\n" + introduction(job);
  text += "# SIGUSR1 asks for a checkpoint and the end; run it again to go on.\n";
  if (job.nodes > 1)
    text += fmt::format(
        "# HOSTS is a file with a line for each of {} hosts: NAME slots={}\n"
        "HOSTS=${{HOSTS:-hosts}}\n",
        job.nodes, job.ranks_per_node);
  text += fmt::format("\ncd {} || exit\n", shell_word(request.folder)) + checks(job);
  if (job.nodes > 1)
    text += "[ -r \"$HOSTS\" ] || refuse \"there is no list of hosts '$HOSTS': set HOSTS\"\n";
  text +=
      "command -v mpirun >/dev/null || refuse 'there is no mpirun on PATH: install Open MPI, or "
      "load "
      "its module'\n"
      "# Open MPI refuses root, as in containers, unless it is told otherwise.\n"
      "if [ \"$(id -u)\" -eq 0 ]; then export OMPI_ALLOW_RUN_AS_ROOT=1 "
      "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi\n\n";
  text += fmt::format("exec mpirun -n {} ", job.nodes * job.ranks_per_node);
  if (job.nodes > 1)
    text += fmt::format("--hostfile \"$HOSTS\" --map-by ppr:{}:node ", job.ranks_per_node);
  else
    text += "--oversubscribe ";
  text += "--bind-to none \\\n";
  text += "  " + command(request);
  if (request.seconds) {
    text.pop_back();
    text += " \\\n  --time-limit " + hours(*request.seconds) + "\n";
  }
  return text;
}

}  // namespace

std::string to_script(const Job& job) {
  return job.request.launcher == Launcher::slurm ? slurm_script(job) : mpirun_script(job);
}

}  // namespace trireme::plan
