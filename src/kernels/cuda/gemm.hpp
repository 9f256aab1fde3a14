// Matrix products on GPUs, through cuBLASLt.
#pragma once

#include <memory>
#include <string>

#include "kernels/cuda/context.hpp"
#include "kernels/gemm.hpp"

namespace trireme::kernels::cuda {

/// How a product gets its kernel.
enum class GemmChoice {
  timed,  ///< the fastest of cuBLASLt's candidates, timed on this GPU
  first,  ///< the candidate that cuBLASLt's heuristic puts first; to compare with
};

/// Runs products with kernels that were chosen by timing: the first time that a product of given
/// shape, transposes, types, alignment, beta and bias is asked for, cuBLASLt's candidates are timed
/// on this GPU, and the fastest is kept in memory and in a file, keyed by GPU and library version.
/// A kernel gives the same bits each time, two kernels for one product need not: runs that are to
/// agree bit by bit share a file. Products that cuBLASLt has no kernel for, and those with a bias
/// not aligned to 16 bytes, run on a plain one.
class GemmRunner {
 public:
  /// Loads cuBLASLt for the current GPU. `cache_path` names the file of choices, which processes
  /// may share while they run; empty keeps them in memory alone, as does a file that cannot be
  /// written. Throws Error (exit 1) when there is no cuBLASLt.
  explicit GemmRunner(std::string cache_path, GemmChoice choice = GemmChoice::timed);
  ~GemmRunner();
  GemmRunner(const GemmRunner&) = delete;
  GemmRunner& operator=(const GemmRunner&) = delete;

  /// Queues the product on context.stream. Needs kGemmWorkspace bytes of workspace. The first call
  /// of a new product waits for the stream while candidates are timed, on memory of its own.
  void operator()(const Gemm& args, const Context& context);

  /// How many products were timed so far, rather than found in the file.
  int timed_products() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme::kernels::cuda
