#include "train/launch_facts.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "core/error.hpp"
#include "core/files.hpp"

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

/// The first word of a file of /sys; "" when it cannot be read.
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

}  // namespace

std::string build_complaint(const ProgramFacts& first, const ProgramFacts& mine) {
  if (mine.build == first.build) return "";
  const auto id = [](const ProgramFacts& program) {
    return program.build.empty() ? "without build id" : program.build.substr(0, 12);
  };
  return fmt::format(
      "'{}' is build {}, but rank 0 on {} runs build {} from '{}'; install one build on all hosts, "
      "or share its folder",
      mine.path, id(mine), first.host, id(first), first.path);
}

std::string deck_complaint(const DeckFacts& first, const DeckFacts& mine) {
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

std::string GpuFacts::taken() const {
  return local_rank < static_cast<int>(names.size()) ? names[local_rank] : "";
}

std::string gpu_complaint(const GpuFacts& mine) {
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

std::string gpu_kind_complaint(const std::string& first, const std::string& mine) {
  if (mine == first) return "";
  return fmt::format(
      "its GPU is a {}, rank 0's a {}: the slower ones would hold up all; ask for one kind (Slurm: "
      "--constraint or --gpus-per-node=KIND:N), or set run.mixed_gpus = true, with "
      "parallel.partition "
      "to give slower stages fewer layers",
      mine, first);
}

NetworkFacts read_network_facts(const fs::path& ports, const fs::path& devices) {
  return {.active_ports = active_ports(ports),
          .has_verbs = can_load_verbs(),
          .has_devices = can_open_verbs(devices),
          .ib_disable = from_environment("NCCL_IB_DISABLE"),
          .net = from_environment("NCCL_NET")};
}

std::string network_complaint(const NetworkFacts& mine) {
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

}  // namespace trireme::train
