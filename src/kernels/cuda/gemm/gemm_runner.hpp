// GEMMs on GPUs, through cuBLASLt and own kernels for Hopper.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/cuda/context.hpp"
#include "kernels/linear.hpp"

namespace trireme::kernels::cuda {

using kernels::Fusion;
using kernels::GemmChoice;

class Chooser;
struct GemmProblem;

/// Runs GEMMs with kernels that were chosen by timing: the first time that a GEMM of given
/// shape, transposes, types, alignment, beta and bias is asked for, cuBLASLt's candidates and
/// the own kernel, if there is one, are timed on this GPU, and the fastest is kept in memory and in
/// a file, keyed by GPU and library version. A kernel gives the same bits each time, two kernels
/// for one GEMM need not: runs that must agree bit by bit share a file. GEMMs that cuBLASLt
/// has no kernel for, and those with a bias not aligned to 16 bytes, run on a plain one.
///
/// A GEMM with a GELU or a bias gradient is timed, and its choice kept, in the same way: in
/// the GEMM's kernel, as its epilogue, against the fastest kernel for the GEMM and one of its
/// own after it. The latter is all there is in fp32, for rows that are no multiple of 8 elements,
/// and for operands not aligned to 16 bytes.
class GemmRunner {
 public:
  /// Loads cuBLASLt for the current GPU. `cache_path` names the file of choices, which processes
  /// may share while they run; empty keeps them in memory alone, as does a file that cannot be
  /// written, and Fusion::always, whose choices are none for others. Throws Error (exit 1) when
  /// there is no cuBLASLt.
  explicit GemmRunner(std::string cache_path, GemmChoice choice = GemmChoice::timed,
                      Fusion fusion = Fusion::timed);
  ~GemmRunner();
  GemmRunner(const GemmRunner&) = delete;
  GemmRunner& operator=(const GemmRunner&) = delete;

  /// Queues the GEMM on context.stream. Needs kGemmWorkspace bytes of workspace. The first call
  /// of a new GEMM waits for the stream while candidates are timed, on separate memory.
  void gemm(const Gemm& args, const Context& context);

  /// Makes the choice for a GEMM, if it is new, without running it on `args`.
  void prepare(const Gemm& args, const Context& context);

  /// As gemm(), for a GEMM with a GELU. Need workspace for bias_gradient and
  /// gelu_backward, too.
  void linear_gelu(const LinearGelu& args, const Context& context);
  void linear_gelu_gradient(const LinearGeluGradient& args, const Context& context);
  void linear_gated(const LinearGated& args, const Context& context);
  void linear_gated_gradient(const LinearGatedGradient& args, const Context& context);
  /// The same for a GEMM with a bias gradient. Needs workspace for both at a time:
  /// kGemmWorkspace + bias_gradient_workspace(out) bytes.
  void linear_weight_gradient(const LinearWeightGradient& args, const Context& context);

  /// How many GEMMs were timed so far, rather than found in the file.
  int timed_gemms() const;
  /// How many GEMMs so far were chosen to run with a fused epilogue.
  int fused_gemms() const;

 private:
  /// gemm() with parts of rows still to come: by an own kernel, if there is one, which reads them
  /// as they come, or by any other after the last.
  void gemm_in_parts(const GemmProblem& problem, const Gemm& args, const Context& context);

  std::unique_ptr<Chooser> chooser_;
};

// ---- the GEMM for whatever cuBLASLt has no kernel for, and random operands to time it with

/// The GEMM of args, of any size and alignment, each element summed in fp32 in the order of k.
/// Correct rather than quick.
void gemm_plain(const Gemm& args, const Context& context);

/// Writes numbers between -1 and 1 over `tensor`: zeros would cost the GPU less power, and so run
/// faster, than what is multiplied later.
void fill_random(const Tensor& tensor, std::uint64_t seed, const Context& context);

}  // namespace trireme::kernels::cuda
