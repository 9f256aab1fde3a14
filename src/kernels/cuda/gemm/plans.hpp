// The file that keeps which cuBLASLt algorithm was the fastest for which GEMM. Plain host code,
// tested where there is no GPU.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "core/tensor.hpp"
#include "kernels/linear.hpp"

namespace trireme::kernels::cuda {

/// Alignment in bytes beyond which none is of use to a GEMM.
inline constexpr std::uint32_t kLargestAlignment = 16;

/// The alignment of `pointer`, at most kLargestAlignment.
std::uint32_t alignment_of(const void* pointer);

/// What is done in addition to the GEMM: by cuBLASLt, too, except for the exact GELU and SwiGLU.
enum class Epilogue {
  none,
  gelu,           ///< stores gelu of C, after the bias, and what it was in another matrix like C
  gelu_gradient,  ///< stores the product of C and gelu' of another matrix like C
  exact_gelu,     ///< as gelu, with Activation::gelu in place of gelu_tanh
  exact_gelu_gradient,  ///< likewise
  gated,                ///< stores C, and what SwiGLU makes of it in a matrix half as wide
  gated_gradient,       ///< stores what SwiGLU's gradient makes of C and a matrix twice as wide
  bias_gradient,        ///< writes the sums of op(A) over k to a vector [m] of fp32
};

constexpr bool is_gelu_gradient(Epilogue epilogue) {
  return epilogue == Epilogue::gelu_gradient || epilogue == Epilogue::exact_gelu_gradient;
}

/// All that the choice of an algorithm depends on: C [m, n] = op(A) [m, k] op(B) [k, n].
struct GemmProblem {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  bool transpose_a = false;
  bool transpose_b = false;
  DType operands = DType::f32;  ///< of A; and of B and the bias, unless FP8
  DType result = DType::f32;    ///< of C; and of the bias, if A and B are FP8
  bool adds = false;            ///< whether beta is other than 0
  bool bias = false;
  Epilogue epilogue = Epilogue::none;
  std::uint32_t alignment_a = kLargestAlignment;
  std::uint32_t alignment_b = kLargestAlignment;
  std::uint32_t alignment_c = kLargestAlignment;
  DType operands_b = DType::f32;  ///< of B, if FP8; else f32
  bool fast_accumulation = false;
  ScaleBlocks blocks_a = ScaleBlocks::tensor;  ///< of FP8, what has a scale
  ScaleBlocks blocks_b = ScaleBlocks::tensor;

  auto operator<=>(const GemmProblem&) const = default;
};

/// "16384x2304x768 NT bf16 to fp32 add bias align 16 16 16": the GEMM's name in the file.
std::string to_string(const GemmProblem& problem);

/// A configured algorithm, as cuBLASLt allows it to be stored (cublasLtMatmulAlgo_t).
using Algorithm = std::array<std::uint64_t, 8>;

/// In place of an algorithm: kernels of their own for the GEMM and for what its epilogue would
/// do are faster.
inline constexpr Algorithm kSeparate = {~std::uint64_t{0}};

/// One line of the file, without its end: machine, GEMM and algorithm.
std::string format_plan(std::string_view machine, std::string_view problem,
                        const Algorithm& algorithm);

/// The algorithm of `line` if it is a plan for this GEMM on this machine.
std::optional<Algorithm> parse_plan(std::string_view line, std::string_view machine,
                                    std::string_view problem);

/// The file of plans, which any number of processes read and extend at the same time. A file that
/// cannot be read or written is done without; lines that are damaged or of other machines are
/// left alone.
class GemmPlans {
 public:
  /// `machine` names GPU and library version: plans are kept apart by it. An empty path keeps
  /// nothing. `shipped`: lines of such files that are used where the file has no plan; must outlive
  /// this.
  GemmPlans(std::string path, std::string machine, std::string_view shipped = "");

  /// The latest plan for `problem`, as the file is now, or the shipped one.
  std::optional<Algorithm> find(const GemmProblem& problem) const;

  /// Adds `mine` as the plan for `problem`, unless another process has added one meanwhile that
  /// is `usable`; returns the one that holds. So all processes run the same algorithm, and get the
  /// same bits, though each of them may have timed another one as the fastest.
  Algorithm settle(const GemmProblem& problem, const Algorithm& mine,
                   const std::function<bool(const Algorithm&)>& usable) const;

 private:
  std::string path_;
  std::string machine_;
  std::string_view shipped_;
};

/// The tuning caches in gemm/shipped: GEMMs timed on the GPUs, and for the cuBLASLt, that are named
/// there. In the library of CUDA kernels.
std::string_view shipped_plans();

}  // namespace trireme::kernels::cuda
