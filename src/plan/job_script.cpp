// The scripts that start jobs: to_script() and the lines that other scripts share.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "core/system/process.hpp"
#include "plan/job.hpp"

namespace trireme::plan {

std::string gpus_option(const JobComponent& component) {
  return fmt::format("{}{}", component.gpu.empty() ? "" : component.gpu + ":",
                     component.ranks_per_node);
}

std::vector<std::string> container_options(const std::string& image, const std::string& folder) {
  return {"--container-image=" + shell_word(image),
          "--container-mounts=" + shell_word(folder + ":" + folder),
          "--container-workdir=" + shell_word(folder),
          "--no-container-remap-root"};  // or PMIx turns the ranks away
}

std::string module_lines(const std::string& modules) {
  std::string words;
  std::istringstream list(modules);
  for (std::string word; list >> word;) words += ' ' + shell_word(word);
  return fmt::format(
      "command -v module >/dev/null || refuse 'there is no command module on this host'\n"
      "module load{} || refuse 'not all modules can be loaded'\n",
      words);
}

std::string pmix_fence_lines() {
  return "# Slurm's default and tree fences can return before all ranks have entered them: then\n"
         "# Open MPI crashes in MPI_Init.\n"
         "export SLURM_PMIX_FENCE=${SLURM_PMIX_FENCE:-ring}\n";
}

std::string note_checkpoint_lines(const std::string& run_folder) {
  // Since the last start: one from an older checkpoint changes the file `latest`, too. [{]: BusyBox
  // and POSIX's awk take ^{ for an error. As an operand a folder "a=b" would be an assignment.
  return fmt::format(
      "newest_checkpoint() {{\n"
      "  awk '/^[{{]\"kind\":\"start\"/ {{ newest = \"\" }} /^[{{]\"kind\":\"checkpoint\"/ {{ "
      "newest = $0 }}\n"
      "    END {{ print newest }}' 2>/dev/null <{0}/metrics.jsonl || true\n"
      "}}\n"
      "before=$(newest_checkpoint)\n",
      run_folder);
}

std::string killed_rank_lines() {
  return "# A rank that a signal ended (SIGABRT, SIGBUS, SIGKILL, SIGSEGV) counts as 75 where this "
         "start has\n"
         "# written a checkpoint: the next one resumes from it and gets further.\n"
         "case $code in\n"
         "  134 | 135 | 137 | 139)\n"
         "    now=$(newest_checkpoint)\n"
         "    if [ -n \"$now\" ] && [ \"$now\" != \"$before\" ]; then code=75; fi\n"
         "    ;;\n"
         "esac\n";
}

namespace {

/// Lines that define `count_starts` and keep what it prints before the run in `starts_before`.
std::string count_starts_lines(const std::string& run_folder) {
  return fmt::format(
      "count_starts() {{\n"
      "  sed -n '/^{{\"kind\":\"start\"/p' 2>/dev/null <{}/metrics.jsonl | wc -l\n"
      "}}\n"
      "starts_before=$(count_starts)\n",
      run_folder);
}

/// Cores that a rank's threads of the host, its data and NCCL's are worth having on a GPU's host.
constexpr std::int64_t kCpusOfGpuRank = 8;
/// How long before the limit the ranks are signalled to save a checkpoint: ten minutes, or a fifth
/// of a shorter time. Slurm may send the signal a minute early.
constexpr double kSignalSeconds = 600, kSignalPart = 0.2;

std::string hours(double seconds) {
  const auto total = static_cast<std::int64_t>(seconds + 0.5);
  return fmt::format("{:02d}:{:02d}:{:02d}", total / 3600, total / 60 % 60, total % 60);
}

/// Whether ranks get GPUs.
bool on_gpus(const JobRequest& request) {
  return request.gpus_per_node > 0 || !request.kinds.empty();
}

std::int64_t cpus_per_rank(const JobRequest& request) {
  return request.cpus_per_rank.value_or(on_gpus(request) ? kCpusOfGpuRank : 1);
}

/// What a rank runs: in an image the program is on PATH.
std::string program(const JobRequest& request) {
  return request.image ? std::filesystem::path(request.program).filename().string()
                       : request.program;
}

/// Lines that set the array `profiler`, the words before the program: none without NSYS=1 or NCU=1.
/// As in jobs/common/job.sh.
std::string profiler_lines(const std::string& run_folder) {
  const std::string folder = shell_word(run_folder) + "/profile";
  return fmt::format(
      "# NSYS=1 or NCU=1: a report of Nsight for each rank in the run folder.\n"
      "profiler=()\n"
      "if [ \"${{NSYS:-0}}\" = 1 ]; then profiler=(nsys profile '--trace=cuda,nvtx,mpi' "
      "--output={0}/nsys-%h-%p); fi\n"
      "if [ \"${{NCU:-0}}\" = 1 ]; then profiler=(ncu --nvtx --launch-skip=2000 "
      "--launch-count=100 --export={0}/ncu-%h-%p); fi\n"
      "if [ ${{#profiler[@]}} -gt 0 ]; then mkdir -p {0} || exit; fi\n",
      folder);
}

/// A line for each word: the program, its deck, the overrides.
std::string command(const JobRequest& request) {
  std::string text = fmt::format("\"${{profiler[@]}}\" {} {}", shell_word(program(request)),
                                 shell_word(request.deck));
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

/// `word` for an #SBATCH line, where sbatch takes a backslash for an escape inside quotes, too.
std::string sbatch_word(const std::string& word) {
  std::string escaped;
  for (const char c : word) escaped += c == '\\' ? std::string("\\\\") : std::string(1, c);
  return shell_word(escaped);
}

/// The #SBATCH lines; each component of a heterogeneous job has its own of most options.
std::string directives(const Job& job) {
  const JobRequest& request = job.request;
  std::string text;
  const auto line = [&](const std::string& option) { text += "#SBATCH --" + option + "\n"; };
  line("job-name=" + job.name);
  for (const JobComponent& component : job.components) {
    if (&component != &job.components.front()) text += "#SBATCH hetjob\n";
    if (request.partition) line("partition=" + sbatch_word(*request.partition));
    if (request.account) line("account=" + sbatch_word(*request.account));
    for (const std::string& option : request.options)
      text += "#SBATCH " + sbatch_word(option) + "\n";
    line(fmt::format("nodes={}", component.nodes));
    line(fmt::format("ntasks-per-node={}", component.ranks_per_node));
    if (on_gpus(request)) line("gpus-per-node=" + gpus_option(component));
    line(fmt::format("cpus-per-task={}", cpus_per_rank(request)));
    line("time=" + hours(job.seconds));
    line(fmt::format("signal=USR1@{}",
                     static_cast<int>(std::min(kSignalSeconds, kSignalPart * job.seconds))));
  }
  line("requeue");
  line("open-mode=append");
  line("output=%x_%j.out");
  line("chdir=" + sbatch_word(request.folder));
  return text;
}

std::string indented(const std::string& lines) {
  std::string text;
  std::istringstream rest(lines);
  for (std::string line; std::getline(rest, line);) text += "  " + line + "\n";
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
  if (request.modules) text += module_lines(*request.modules);
  if (request.image) {
    text +=
        "srun --help 2>&1 | grep -q -- --container-image || refuse 'srun has no --container-image: "
        "pyxis is not installed here'\n";
    const std::vector<std::string> options = container_options(*request.image, request.folder);
    text += fmt::format(
        "\n"
        "# The run cannot see in which container it is: so it is told what continues it.\n"
        "container=({} {} {}\n  {})\n"
        "export TRIREME_CONTAINER=\"${{container[*]@Q}}\"\n",
        options[0], options[1], options[2], options[3]);
  }
  const std::string folder = shell_word(job.run_folder);
  text += "\n" + pmix_fence_lines() + note_checkpoint_lines(folder) + count_starts_lines(folder) +
          profiler_lines(job.run_folder);
  std::string srun =
      fmt::format("srun --mpi=pmix --cpus-per-task={} --kill-on-bad-exit=0 --wait=30 \\\n",
                  cpus_per_rank(request));
  if (job.components.size() > 1)
    srun += fmt::format("  --het-group=0-{} \\\n", job.components.size() - 1);
  if (on_gpus(request))
    srun += "  --gpu-bind=none \\\n";  // ranks choose theirs, and reach the others' memory
  if (request.image) srun += "  \"${container[@]}\" \\\n";
  srun += "  " + command(request);
  text += fmt::format(
      "# A rank that fails takes the others with it after half a minute; one that ends with 75\n"
      "# must not. Ranks that crash before the run has started, as Open MPI may in MPI_Init, are\n"
      "# launched again.\n"
      "for _ in 1 2 3; do\n"
      "{}"
      "  code=$?\n"
      "  case \"$code\" in 134 | 135 | 139) ;; *) break ;; esac\n"
      "  if [ \"$(count_starts)\" != \"$starts_before\" ]; then break; fi\n"
      "done\n"
      "{}"
      "# 75: stopped early with a checkpoint, from which the same job resumes.\n"
      "if [ \"$code\" -eq 75 ]; then scontrol requeue \"$SLURM_JOB_ID\"; fi\n"
      "exit \"$code\"\n",
      indented(srun), killed_rank_lines());
  return text;
}

std::string mpirun_script(const Job& job) {
  const JobRequest& request = job.request;
  std::string text = "#!/bin/bash\n" + introduction(job);
  text += "# SIGUSR1 makes the run save a checkpoint and stop; run this again to resume.\n";
  std::int64_t nodes = 0, ranks = 0;
  std::vector<std::string> lines;
  for (const JobComponent& component : job.components) {
    nodes += component.nodes;
    ranks += component.nodes * component.ranks_per_node;
    const std::string line = fmt::format("NAME slots={}", component.ranks_per_node);
    lines.push_back(job.components.size() == 1 ? line
                                               : fmt::format("{} of {}", component.nodes, line));
  }
  if (nodes > 1)
    text += fmt::format(
        "# HOSTS is a file with a line for each of {} hosts: {}\n"
        "HOSTS=${{HOSTS:-hosts}}\n",
        nodes, fmt::join(lines, ", then "));
  text += fmt::format("\ncd {} || exit\n", shell_word(request.folder)) + checks(job);
  if (nodes > 1)
    text += "[ -r \"$HOSTS\" ] || refuse \"there is no list of hosts '$HOSTS': set HOSTS\"\n";
  if (request.modules) text += module_lines(*request.modules);
  text +=
      "command -v mpirun >/dev/null || refuse 'there is no mpirun on PATH: install Open MPI, or "
      "load "
      "its module'\n"
      "# Open MPI refuses root, as in containers, unless it is told otherwise.\n"
      "if [ \"$(id -u)\" -eq 0 ]; then export OMPI_ALLOW_RUN_AS_ROOT=1 "
      "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi\n\n";
  text += profiler_lines(job.run_folder);
  text += fmt::format("exec mpirun -n {} ", ranks);
  if (job.components.size() > 1)
    text += "--hostfile \"$HOSTS\" --map-by slot ";
  else if (nodes > 1)
    text += fmt::format("--hostfile \"$HOSTS\" --map-by ppr:{}:node ",
                        job.components.front().ranks_per_node);
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
