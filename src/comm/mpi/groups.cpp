#include "comm/mpi/mpi_communicator.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>

#include "core/error.hpp"
#include "core/files.hpp"
#include "core/system/process.hpp"

namespace trireme::comm {
namespace {

[[noreturn]] void throw_as(ExitCode code, const std::string& message) {
  switch (code) {
    case ExitCode::data:
      throw DataError("{}", message);
    case ExitCode::io:
      throw IoError("{}", message);
    case ExitCode::deck:
      throw DeckError("{}", message);
    case ExitCode::usage:
      throw UsageError("{}", message);
    case ExitCode::failure:
    case ExitCode::stopped_early:
    case ExitCode::diverged:
    case ExitCode::corrupted:
      throw Error(code, message);
    case ExitCode::success:
    case ExitCode::internal:
      break;
  }
  throw InternalError("{}", message);
}

}  // namespace

std::string_view name_of(Axis axis) {
  switch (axis) {
    case Axis::tensor:
      return "tensor";
    case Axis::data:
      return "data";
    case Axis::pipeline:
      return "pipeline";
    case Axis::embedding:
      return "embedding";
  }
  return "";
}

Groups make_groups(std::unique_ptr<MpiCommunicator> world, const grid::Layout& layout,
                   const Connect& connect) {
  TRIREME_CHECK(world->size() == layout.ranks(), "{} ranks for a layout of {}", world->size(),
                layout.ranks());
  Groups groups;
  groups.layout = layout;
  groups.place = layout.coordinates_of(world->rank());
  const auto [tensor, data, pipeline] = groups.place;
  const auto split = [&](int color, int key, Axis axis) -> std::unique_ptr<Communicator> {
    std::unique_ptr<MpiCommunicator> part = world->split(color, key, std::string(name_of(axis)));
    if (!part || !connect) return part;
    return connect(axis, std::move(part));
  };
  groups.tensor = split(layout.rank_of({0, data, pipeline}), tensor, Axis::tensor);
  groups.data = split(layout.rank_of({tensor, 0, pipeline}), data, Axis::data);
  groups.pipeline = split(layout.rank_of({tensor, data, 0}), pipeline, Axis::pipeline);
  const bool tied_copy = layout.pipeline > 1 && (groups.is_first_stage() || groups.is_last_stage());
  groups.embedding =
      split(tied_copy ? layout.rank_of({tensor, data, 0}) : -1, pipeline, Axis::embedding);
  groups.world = std::move(world);
  return groups;
}

void agree(MpiCommunicator& ranks, const std::function<void()>& step) {
  if (ranks.size() == 1) return step();
  int code = 0;
  std::string message;
  try {
    step();
  } catch (const Error& error) {
    code = static_cast<int>(error.code());
    message = error.what();
  } catch (const std::exception& error) {
    code = static_cast<int>(ExitCode::internal);
    message = error.what();
  }
  if (ranks.all_reduce(code, Reduce::max) == 0) return;
  for (const std::string& text : ranks.all_gather_text(std::to_string(code) + " " + message)) {
    if (const int first = std::stoi(text); first != 0)
      throw_as(static_cast<ExitCode>(first), text.substr(text.find(' ') + 1));
  }
}

// ---------------------------------------------------------------------------- launchers

namespace {

constexpr std::chrono::seconds kAbortTimeout{10};

/// The number in an environment variable, 0 when it is absent or no number.
long number_from_environment(const char* name) {
  const char* text = std::getenv(name);
  return text ? std::strtol(text, nullptr, 10) : 0;
}

/// The cores that the kernel lets this process run on, as a list such as "0-3,8".
std::string allowed_cores() {
  const std::string key = "Cpus_allowed_list:";
  const std::string status = read_file("/proc/self/status");
  const std::size_t begin = status.find(key);
  TRIREME_CHECK(begin != std::string::npos, "/proc/self/status does not list the allowed cores");
  return status.substr(begin + key.size(), status.find('\n', begin) - begin - key.size());
}

}  // namespace

void abort_all(int code) {
  int initialized = 0;
  int finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (initialized && !finalized) {
    // MPI_Abort may block forever when the launcher cannot be reached.
    std::thread([code] {
      std::this_thread::sleep_for(kAbortTimeout);
      std::_Exit(code);
    }).detach();
    MPI_Abort(MPI_COMM_WORLD, code);
  }
  std::_Exit(code);
}

long launched_ranks() {
  if (const long ranks = number_from_environment("OMPI_COMM_WORLD_SIZE"); ranks > 0) return ranks;
  const bool by_srun = std::getenv("PMIX_RANK") != nullptr;
  return by_srun ? std::max(number_from_environment("SLURM_STEP_NUM_TASKS"), 1L) : 1;
}

void isolate_singleton() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMIX_NAMESPACE", "PMI_RANK"})
    if (std::getenv(name)) return;
  setenv("OMPI_MCA_ess_singleton_isolated", "1", /*overwrite=*/0);
  // Such processes have one session folder, which the first that ends deletes under the others: one
  // in a hundred of those that start at the same time would fail in MPI_Init.
  setenv("OMPI_MCA_orte_create_session_dirs", "0", /*overwrite=*/0);
  // No library of a network, some of which take a quarter of a second to load.
  setenv("OMPI_MCA_pml", "ob1", /*overwrite=*/0);
}

bool mpi_has_started() {
  int started = 0;
  MPI_Initialized(&started);
  return started != 0;
}

void check_process_manager() {
  // Set by mpirun, srun --mpi=pmix and srun --mpi=pmi2.
  for (const char* name : {"PMIX_RANK", "PMIX_NAMESPACE", "PMI_RANK", "PMI_FD"})
    if (std::getenv(name)) return;
  if (const long ranks = number_from_environment("SLURM_STEP_NUM_TASKS"); ranks > 1)
    throw LauncherError(fmt::format(
        "srun started {} tasks (SLURM_STEP_NUM_TASKS) without PMIx, so that ranks do not see each "
        "other. Start it with 'srun --mpi=pmix'; in a container, install enroot's hook "
        "50-slurm-pmi.sh as well",
        ranks));
}

void check_launcher(int size) {
  if (size > 1) return;
  // mpirun's variable has precedence: `mpirun -n 1` inside a larger Slurm job is intended.
  if (const long ranks = number_from_environment("OMPI_COMM_WORLD_SIZE"); ranks > 0) {
    if (ranks == 1) return;
    throw LauncherError(
        fmt::format("mpirun started {} ranks (OMPI_COMM_WORLD_SIZE), but MPI sees only "
                    "this one: every rank would train alone. This program was built "
                    "against another MPI than that mpirun's; start it with the mpirun of "
                    "the MPI that it was built with",
                    ranks));
  }
  if (const long ranks = number_from_environment("SLURM_NTASKS"); ranks > 1)
    throw LauncherError(
        fmt::format("Slurm gave {} tasks (SLURM_NTASKS), but MPI sees only this one: every "
                    "rank would train alone. Start it with 'srun --mpi=pmix'; in a "
                    "container, install enroot's hook 50-slurm-pmi.sh as well",
                    ranks));
  if (const long ranks = number_from_environment("PMI_SIZE"); ranks > 1)
    throw LauncherError(
        fmt::format("the launcher started {} ranks (PMI_SIZE), but MPI sees only this one: "
                    "every rank would train alone. That launcher belongs to another MPI "
                    "than this program was built with; use the mpirun of the latter, or "
                    "'srun --mpi=pmix'",
                    ranks));
}

int ranks_sharing_cores(MpiCommunicator& world) {
  const std::string mine = host_name() + " " + allowed_cores();
  const std::vector<std::string> all = world.all_gather_text(mine);
  return static_cast<int>(std::count(all.begin(), all.end(), mine));
}

int node_local_rank(const MpiCommunicator& world) { return world.split_by_node()->rank(); }

int node_local_size(const MpiCommunicator& world) { return world.split_by_node()->size(); }

namespace {

constexpr int kTag = 8;
// A rank asks again while the answers are slower than usual, as on hosts with other work.
constexpr int kMinQuestions = 8, kMaxQuestions = 200;
constexpr double kGoodErrorMs = 0.02;
constexpr double kNoMoreQuestions = -1.0;

ClockOffset ask(MpiCommunicator& group, const std::function<double()>& clock_ms) {
  ClockOffset best{.error_ms = HUGE_VAL};
  double word = 0;
  for (int i = 0; i < kMaxQuestions; ++i) {
    if (i >= kMinQuestions && best.error_ms <= kGoodErrorMs) break;
    const double before = clock_ms();
    group.send(&word, sizeof word, 0, kTag)->wait();
    group.receive(&word, sizeof word, 0, kTag)->wait();
    const double after = clock_ms();
    if ((after - before) / 2 < best.error_ms)
      best = {.ms = word - (before + after) / 2, .error_ms = (after - before) / 2};
    word = 0;
  }
  word = kNoMoreQuestions;
  group.send(&word, sizeof word, 0, kTag)->wait();
  return best;
}

void answer(MpiCommunicator& group, int peer, const std::function<double()>& clock_ms) {
  while (true) {
    double word = 0;
    group.receive(&word, sizeof word, peer, kTag)->wait();
    if (word == kNoMoreQuestions) return;
    word = clock_ms();
    group.send(&word, sizeof word, peer, kTag)->wait();
  }
}

}  // namespace

ClockOffset clock_offset(MpiCommunicator& group, const std::function<double()>& clock_ms) {
  if (group.rank() > 0) return ask(group, clock_ms);
  for (int peer = 1; peer < group.size(); ++peer) answer(group, peer, clock_ms);
  return {};
}

// ---- what the device communicator's factory says in a build without CUDA

#ifndef TRIREME_WITH_CUDA

std::string nccl_version() { return ""; }

std::unique_ptr<Communicator> make_device_communicator(MpiCommunicator&, const std::string& name,
                                                       CUstream_st*, const NcclOptions&) {
  throw CodedError<ExitCode::failure>(
      "group '{}' cannot reach GPUs: this build has no CUDA backend (TRIREME_CUDA)", name);
}

#endif

}  // namespace trireme::comm
