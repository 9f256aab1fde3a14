#include "train/launch_command.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <initializer_list>
#include <string_view>

#include "core/error.hpp"
#include "core/files.hpp"
#include "core/system/shell.hpp"

namespace trireme::train {
namespace {

using Words = std::vector<std::string>;

std::optional<std::string> from_environment(const char* name) {
  const char* value = std::getenv(name);
  return value && *value ? std::optional<std::string>(value) : std::nullopt;
}

/// The command line of a process; empty where it cannot be read.
Words command_line_of(long process) {
  try {
    const std::string text = read_file(fmt::format("/proc/{}/cmdline", process));
    Words words;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = std::min(text.find('\0', at), text.size());
      words.push_back(text.substr(at, end - at));
      at = end + 1;
    }
    return words;
  } catch (const IoError&) {
    return {};
  }
}

bool is_one_of(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

bool is_mpirun(const std::string& word) {
  const std::string_view name = std::string_view(word).substr(word.rfind('/') + 1);
  return name.starts_with("mpirun") || name.starts_with("mpiexec") || name.starts_with("orterun");
}

/// mpirun's options as they were typed, without the number of ranks; empty where `parent` is no
/// mpirun that started this one command.
std::optional<Words> typed_options(const Words& parent, const Words& command) {
  if (parent.size() <= command.size() || !is_mpirun(parent[0])) return std::nullopt;
  const auto end = parent.end() - static_cast<std::ptrdiff_t>(command.size());
  if (!std::equal(end, parent.end(), command.begin())) return std::nullopt;
  Words options;
  for (auto word = parent.begin() + 1; word != end; ++word) {
    if (is_one_of(*word, {":", "--app", "-app"})) return std::nullopt;
    if (is_one_of(*word, {"-n", "-np", "--n", "--np", "-c"}) && word + 1 != end)
      ++word;
    else
      options.push_back(*word);
  }
  return options;
}

std::string mpirun_words(const LaunchFacts& facts, int ranks, const Words& command) {
  const std::optional<Words> typed = typed_options(facts.parent, command);
  Words options = typed.value_or(Words());
  if (!typed) {
    if (facts.oversubscribes) options.push_back("--oversubscribe");
    if (facts.binding) options.insert(options.end(), {"--bind-to", *facts.binding});
    if (facts.mapping) options.insert(options.end(), {"--map-by", *facts.mapping});
  }
  const bool allows_root = std::any_of(options.begin(), options.end(), [](const auto& word) {
    return is_one_of(word, {"--allow-run-as-root", "-allow-run-as-root"});
  });
  // In front: a wrapper such as env may stand between the options and the program.
  if (facts.root && !allows_root) options.insert(options.begin(), "--allow-run-as-root");
  std::string text = fmt::format("mpirun -n {}", ranks);
  for (const std::string& word : options) text.append(" ").append(shell_word(word));
  return text;
}

}  // namespace

LaunchFacts read_launch_facts() {
  const auto name_space = from_environment("PMIX_NAMESPACE");  // srun's is slurm.pmix.JOB.STEP
  const auto oversubscribe = from_environment("OMPI_MCA_rmaps_base_oversubscribe");
  return {.parent = command_line_of(::getppid()),
          .by_srun = name_space && name_space->starts_with("slurm."),
          .root = ::geteuid() == 0,
          .oversubscribes = oversubscribe && *oversubscribe != "0" && *oversubscribe != "false",
          .binding = from_environment("OMPI_MCA_hwloc_base_binding_policy"),
          .mapping = from_environment("OMPI_MCA_rmaps_base_mapping_policy"),
          .container = from_environment("TRIREME_CONTAINER"),
          .cpus_per_task = from_environment("SRUN_CPUS_PER_TASK"),
          .gpu_bind = from_environment("SLURM_GPU_BIND")};
}

std::string launch_words(const LaunchFacts& facts, int ranks, const Words& command) {
  if (!facts.container && ranks == 1) return "";
  if (!facts.container && !facts.by_srun) return mpirun_words(facts, ranks, command);
  std::string text = fmt::format("srun --mpi=pmix -n {}", ranks);
  if (facts.container) text.append(" ").append(*facts.container);
  if (facts.cpus_per_task)
    text.append(" --cpus-per-task=").append(shell_word(*facts.cpus_per_task));
  if (facts.gpu_bind) text.append(" --gpu-bind=").append(shell_word(*facts.gpu_bind));
  return text;
}

}  // namespace trireme::train
