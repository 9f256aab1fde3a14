#include "train/startup/launch.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <initializer_list>
#include <sstream>
#include <string_view>

#include "core/error.hpp"
#include "core/files.hpp"
#include "core/system/process.hpp"

namespace trireme::train {
namespace {

namespace fs = std::filesystem;

std::optional<std::string> from_environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? std::optional<std::string>(value) : std::nullopt;
}

/// Where two texts differ first: "line 12 is 'a' there and 'b' on rank 0".
std::string first_difference(const std::string& first, const std::string& mine) {
  std::istringstream ours(first), theirs(mine);
  const auto next = [](std::istringstream& lines) {
    std::string line;
    return std::getline(lines, line) ? "'" + line + "'" : std::string("missing");
  };
  for (int number = 1;; ++number) {
    const std::string here = next(ours), there = next(theirs);
    if (here != there)
      return fmt::format("line {} is {} there and {} on rank 0", number, there, here);
    if (!ours && !theirs) return "they end differently";
  }
}

/// The first line of a file of /sys; "" when it cannot be read.
std::string first_line(const fs::path& path) {
  try {
    const std::string text = read_file(path);
    return text.substr(0, text.find('\n'));
  } catch (const IoError&) {
    return "";
  }
}

/// The entries of a folder, sorted; none when it cannot be read.
std::vector<fs::path> entries(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> found;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error))
    found.push_back(entry->path());
  std::sort(found.begin(), found.end());
  return found;
}

std::vector<std::string> active_ports(const fs::path& devices) {
  std::vector<std::string> active;
  for (const fs::path& device : entries(devices))
    for (const fs::path& port : entries(device / "ports"))
      if (first_line(port / "link_layer") == "InfiniBand" &&
          first_line(port / "state").find("ACTIVE") != std::string::npos)
        active.push_back(
            fmt::format("{} port {}", device.filename().string(), port.filename().string()));
  return active;
}

bool can_open_verbs(const fs::path& devices) {
  for (const fs::path& device : entries(devices)) {
    if (!device.filename().string().starts_with("uverbs")) continue;
    const int fd = ::open(device.c_str(), O_RDWR | O_CLOEXEC);
    if (fd >= 0) ::close(fd);
    if (fd >= 0) return true;
  }
  return false;
}

bool can_load_verbs() {
  for (const char* name : {"libibverbs.so", "libibverbs.so.1"}) {
    if (void* handle = dlopen(name, RTLD_NOW | RTLD_LOCAL)) {
      dlclose(handle);
      return true;
    }
  }
  return false;
}

/// The first 12 digits of the program's id and of each library's.
std::string short_build_id(std::string_view build) {
  std::string ids;
  while (true) {
    const std::size_t end = std::min(build.find('+'), build.size());
    ids.append(build.substr(0, std::min<std::size_t>(end, 12)));
    if (end == build.size()) return ids;
    ids += '+';
    build.remove_prefix(end + 1);
  }
}

}  // namespace

std::string build_problem(const ProgramInfo& first, const ProgramInfo& mine) {
  if (mine.build == first.build) return "";
  const auto id = [](const ProgramInfo& program) {
    return program.build.empty() ? "without build id" : short_build_id(program.build);
  };
  return fmt::format(
      "'{}' is build {}, but rank 0 on {} runs build {} from '{}'; install one build on all hosts, "
      "or share its folder",
      mine.path, id(mine), first.host, id(first), first.path);
}

std::string deck_problem(const DeckInfo& first, const DeckInfo& mine) {
  if (mine.overrides != first.overrides)
    return fmt::format(
        "it was started with other key=value words than rank 0: {}; start all ranks with one "
        "command line",
        first_difference(first.overrides, mine.overrides));
  if (!first.text || !mine.text || *mine.text == *first.text) return "";
  return fmt::format(
      "its deck '{}' is not rank 0's '{}': {}; put the deck on a file system that all hosts share",
      mine.path, first.path, first_difference(*first.text, *mine.text));
}

std::string GpuInfo::taken() const {
  return local_rank < static_cast<int>(names.size()) ? names[local_rank] : "";
}

std::string gpu_problem(const GpuInfo& mine) {
  if (mine.names.empty()) return fmt::format("run.device = cuda: {}", mine.why_none);
  if (!mine.taken().empty()) return "";
  const std::size_t gpus = mine.names.size();
  return fmt::format(
      "run.device = cuda: {} ranks were started on this host, and each sees {} GPU{} "
      "(CUDA_VISIBLE_DEVICES {}); start at most {} there. If the launcher gave each rank GPUs of "
      "its own, let them see all of the host's, of which each takes the one of its number: srun "
      "--gpus-per-node=N --gpu-bind=none, without --gpus-per-task",
      mine.local_ranks, gpus, gpus == 1 ? "" : "s",
      mine.visible ? "= " + *mine.visible : "is not set", gpus);
}

std::string fp8_problem(const std::string& gpu, int capability, deck::Fp8Recipe recipe) {
  if (capability >= 89 && recipe == deck::Fp8Recipe::block && capability != 90)
    return fmt::format(
        "precision.fp8.recipe = block needs a GPU of compute capability 9.0 (H100, H200), but {} "
        "has {}.{} (try precision.fp8.recipe: tensor)",
        gpu, capability / 10, capability % 10);
  if (capability >= 89) return "";
  return fmt::format(
      "precision.gemm = fp8 needs a GPU with FP8 tensor cores, of compute capability 8.9 or newer "
      "(L4, L40, H100, H200), but {} has {}.{} (try precision.gemm: same)",
      gpu, capability / 10, capability % 10);
}

std::string gpu_kind_problem(const std::string& first, const std::string& mine) {
  if (mine == first) return "";
  return fmt::format(
      "its GPU is a {}, rank 0's a {}: the slower ones would hold up all; ask for one kind (Slurm: "
      "--constraint or --gpus-per-node=KIND:N), or set run.mixed_gpus = true, with "
      "parallel.partition "
      "to give slower stages fewer layers",
      mine, first);
}

NetworkInfo read_network_info(const fs::path& ports, const fs::path& devices) {
  return {.active_ports = active_ports(ports),
          .has_verbs = can_load_verbs(),
          .has_devices = can_open_verbs(devices),
          .ib_disable = from_environment("NCCL_IB_DISABLE"),
          .net = from_environment("NCCL_NET")};
}

std::string network_problem(const NetworkInfo& mine) {
  if (mine.active_ports.empty() || mine.net.value_or("IB") != "IB") return "";
  std::string reason;
  if (std::atoi(mine.ib_disable.value_or("0").c_str()) != 0)
    reason = fmt::format("NCCL_IB_DISABLE = {}; unset it", *mine.ib_disable);
  else if (!mine.has_verbs)
    reason =
        "libibverbs.so.1 cannot be loaded; install libibverbs1 and ibverbs-providers (in the "
        "image, too)";
  else if (!mine.has_devices)
    reason = "/dev/infiniband/uverbs* cannot be opened; mount /dev/infiniband in the container";
  else
    return "";
  return fmt::format(
      "InfiniBand is active ({}), but NCCL would fall back to TCP sockets: {}, or set "
      "NCCL_NET=Socket where sockets are meant",
      fmt::join(mine.active_ports, ", "), reason);
}

namespace {

using Words = std::vector<std::string>;

/// A variable of the environment; unset where it is empty.
std::optional<std::string> non_empty_from_environment(const char* name) {
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

std::string mpirun_words(const LaunchInfo& info, int ranks, const Words& command) {
  const std::optional<Words> typed = typed_options(info.parent, command);
  Words options = typed.value_or(Words());
  if (!typed) {
    if (info.oversubscribes) options.push_back("--oversubscribe");
    if (info.binding) options.insert(options.end(), {"--bind-to", *info.binding});
    if (info.mapping) options.insert(options.end(), {"--map-by", *info.mapping});
  }
  const bool allows_root = std::any_of(options.begin(), options.end(), [](const auto& word) {
    return is_one_of(word, {"--allow-run-as-root", "-allow-run-as-root"});
  });
  // In front: a wrapper such as env may stand between the options and the program.
  if (info.root && !allows_root) options.insert(options.begin(), "--allow-run-as-root");
  std::string text = fmt::format("mpirun -n {}", ranks);
  for (const std::string& word : options) text.append(" ").append(shell_word(word));
  return text;
}

}  // namespace

LaunchInfo read_launch_info() {
  const auto name_space =
      non_empty_from_environment("PMIX_NAMESPACE");  // srun's is slurm.pmix.JOB.STEP
  const auto oversubscribe = non_empty_from_environment("OMPI_MCA_rmaps_base_oversubscribe");
  return {.parent = command_line_of(::getppid()),
          .by_srun = name_space && name_space->starts_with("slurm."),
          .root = ::geteuid() == 0,
          .oversubscribes = oversubscribe && *oversubscribe != "0" && *oversubscribe != "false",
          .binding = non_empty_from_environment("OMPI_MCA_hwloc_base_binding_policy"),
          .mapping = non_empty_from_environment("OMPI_MCA_rmaps_base_mapping_policy"),
          .container = non_empty_from_environment("TRIREME_CONTAINER"),
          .cpus_per_task = non_empty_from_environment("SRUN_CPUS_PER_TASK"),
          .gpu_bind = non_empty_from_environment("SLURM_GPU_BIND")};
}

std::string launch_words(const LaunchInfo& info, int ranks, const Words& command) {
  if (!info.container && ranks == 1) return "";
  if (!info.container && !info.by_srun) return mpirun_words(info, ranks, command);
  std::string text = fmt::format("srun --mpi=pmix -n {}", ranks);
  if (info.container) text.append(" ").append(*info.container);
  if (info.cpus_per_task) text.append(" --cpus-per-task=").append(shell_word(*info.cpus_per_task));
  if (info.gpu_bind) text.append(" --gpu-bind=").append(shell_word(*info.gpu_bind));
  return text;
}

}  // namespace trireme::train
