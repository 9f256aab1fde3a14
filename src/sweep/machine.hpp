// What this machine can run, and which part of it each run gets.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace trireme::sweep {

/// The GPUs, cores and memory that this process may use.
struct Machine {
  std::vector<std::string> gpus;  ///< as CUDA_VISIBLE_DEVICES names them
  std::size_t gpu_bytes = 0;      ///< memory of the smallest
  int cores = 1;
  std::size_t host_bytes = 0;
};

/// Looks at this machine.
Machine this_machine();

/// What the ranks of a run need.
struct Need {
  int ranks = 1;
  std::size_t bytes = 0;  ///< of the fullest rank, as planned
  bool on_gpus = false;
};

/// Why a run cannot go on here, in words; nothing when it can. Each rank wants a GPU or core of its
/// own, unless `max_ranks` allows more (or less).
std::optional<std::string> why_unfit(const Machine& machine, const Need& need,
                                     std::optional<int> max_ranks);

/// Hands out GPUs to runs that go on side by side, each GPU to one at a time.
class GpuPool {
 public:
  explicit GpuPool(std::vector<std::string> gpus) : free_(std::move(gpus)) {}

  /// `count` GPUs that nobody has; nothing while there are too few.
  std::optional<std::vector<std::string>> take(int count);
  void give_back(const std::vector<std::string>& gpus);

 private:
  std::vector<std::string> free_;
};

}  // namespace trireme::sweep
