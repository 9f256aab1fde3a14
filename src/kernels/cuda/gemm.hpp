// Matrix products on GPUs, through cuBLASLt.
#pragma once

#include <memory>
#include <string>

#include "kernels/cuda/context.hpp"
#include "kernels/gemm.hpp"

namespace trireme::kernels::cuda {

/// Runs products with kernels that were chosen by timing: the first time that a product of given
/// shape, transposes, types, beta and bias is asked for, cuBLASLt's candidates are timed on this
/// GPU, and the fastest is kept in memory and in a file, keyed by GPU and library version.
class GemmRunner {
 public:
  /// Loads cuBLASLt. `cache_path` names the file of choices; empty keeps them in memory alone. A
  /// file that cannot be read or is of another version is ignored and written anew. Throws Error
  /// (exit 1) when there is no cuBLASLt.
  explicit GemmRunner(std::string cache_path);
  ~GemmRunner();
  GemmRunner(const GemmRunner&) = delete;
  GemmRunner& operator=(const GemmRunner&) = delete;

  /// Queues the product on context.stream. Needs kGemmWorkspace bytes of workspace. The first call
  /// of a new product waits for the stream while candidates are timed, on memory of its own.
  void operator()(const Gemm& args, const Context& context);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme::kernels::cuda
