// cuBLASLt, loaded when it is first needed, and one GEMM on one of its algorithms.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include "core/system/process.hpp"
#include "kernels/cuda/context.hpp"
#include "kernels/cuda/gemm/plans.hpp"
#include "kernels/linear.hpp"

namespace trireme::kernels::cuda {

/// The library's functions, named as in cublasLt.h less their prefix, and one handle for the
/// current GPU.
class CublasLt {
 public:
  /// Throws Error (exit 1) when the library of the major version that this was compiled for is
  /// not there.
  CublasLt();
  ~CublasLt();
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;

  /// Throws InternalError with the library's own text, the call, its place, rank and host, unless
  /// `status` is success.
  void check(cublasStatus_t status, const char* call, const char* file, int line) const;
#define TRIREME_CUBLASLT(library, ...) \
  (library).check((library).__VA_ARGS__, "cublasLt" #__VA_ARGS__, __FILE__, __LINE__)

 private:
  SharedLibrary library_;

 public:
#define TRIREME_CUBLASLT_FUNCTION(name) \
  decltype(&cublasLt##name) name =      \
      library_.function<std::remove_pointer_t<decltype(&cublasLt##name)>>("cublasLt" #name)
  TRIREME_CUBLASLT_FUNCTION(Create);
  TRIREME_CUBLASLT_FUNCTION(Destroy);
  TRIREME_CUBLASLT_FUNCTION(GetStatusName);
  TRIREME_CUBLASLT_FUNCTION(GetStatusString);
  TRIREME_CUBLASLT_FUNCTION(GetVersion);
  TRIREME_CUBLASLT_FUNCTION(Matmul);
  TRIREME_CUBLASLT_FUNCTION(MatmulAlgoCheck);
  TRIREME_CUBLASLT_FUNCTION(MatmulAlgoConfigGetAttribute);
  TRIREME_CUBLASLT_FUNCTION(MatmulAlgoGetHeuristic);
  TRIREME_CUBLASLT_FUNCTION(MatmulDescCreate);
  TRIREME_CUBLASLT_FUNCTION(MatmulDescDestroy);
  TRIREME_CUBLASLT_FUNCTION(MatmulDescSetAttribute);
  TRIREME_CUBLASLT_FUNCTION(MatmulPreferenceCreate);
  TRIREME_CUBLASLT_FUNCTION(MatmulPreferenceDestroy);
  TRIREME_CUBLASLT_FUNCTION(MatmulPreferenceSetAttribute);
  TRIREME_CUBLASLT_FUNCTION(MatrixLayoutCreate);
  TRIREME_CUBLASLT_FUNCTION(MatrixLayoutDestroy);
#undef TRIREME_CUBLASLT_FUNCTION

  cublasLtHandle_t handle = nullptr;
};

/// The GEMM that `args` asks for, without an epilogue. Throws InternalError, in words, when the
/// tensors are none that can be multiplied.
GemmProblem problem_of(const Gemm& args);

/// Where the matrices of one GEMM lie. `bias` is null without one, `aux`, the other matrix or
/// vector of the epilogue, without an epilogue; beta is 0 or the factor of what C holds.
struct Operands {
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  const void* bias = nullptr;
  float beta = 0.0f;
  void* aux = nullptr;
  float* vector = nullptr;         ///< what an own kernel adds its column or row sums to
  const float* scale_a = nullptr;  ///< of FP8, in the GPU's memory
  const float* scale_b = nullptr;
  PartArrivals arrivals = {};  ///< of A, for an own kernel
};

Operands operands_of(const Gemm& args);

/// A GEMM described to cuBLASLt, which stores matrices by columns: a matrix of ours is the
/// transpose of what it sees in the same memory, so that it is asked for C^T = op(B)^T op(A)^T,
/// with our bias along its rows.
class Matmul {
 public:
  Matmul(const CublasLt& library, const GemmProblem& problem);

  /// The library's candidates for it, the one that it holds to be the fastest first; empty when
  /// it has none. Only those whose sums are taken in fp32 and in a fixed order.
  std::vector<Algorithm> candidates() const;
  /// Whether `algorithm` may be run: of a file, it may come from elsewhere.
  bool usable(const Algorithm& algorithm) const;
  /// Queues it on context.stream, with kGemmWorkspace bytes of the context's workspace.
  cublasStatus_t run(const Algorithm& algorithm, const Operands& operands,
                     const Context& context) const;

 private:
  template <typename Opaque>
  using Owned = std::unique_ptr<Opaque, cublasStatus_t (*)(Opaque*)>;
  using Layout = Owned<cublasLtMatrixLayoutOpaque_t>;

  Layout layout(DType dtype, std::int64_t rows, std::int64_t columns) const;
  template <typename Value>
  void describe(cublasLtMatmulDescAttributes_t attribute, const Value& value) const;
  bool deterministic(const cublasLtMatmulHeuristicResult_t& result) const;

  const CublasLt& library_;
  const GemmProblem problem_;
  Owned<cublasLtMatmulDescOpaque_t> description_;
  Layout first_, second_, result_;
};

}  // namespace trireme::kernels::cuda
