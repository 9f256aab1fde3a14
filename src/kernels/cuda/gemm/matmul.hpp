// One matrix product, as cuBLASLt knows it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/cuda/context.hpp"
#include "kernels/cuda/gemm/cublaslt.hpp"
#include "kernels/cuda/gemm/plans.hpp"
#include "kernels/gemm.hpp"

namespace trireme::kernels::cuda {

/// The product that `args` asks for, without an epilogue. Throws InternalError, in words, when the
/// tensors are none that can be multiplied.
Product product_of(const Gemm& args);

/// Where the matrices of one product lie. `bias` is null without one, `aux`, the other matrix or
/// vector of the epilogue, without an epilogue; beta is 0 or the factor of what C holds.
struct Operands {
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  const void* bias = nullptr;
  float beta = 0.0f;
  void* aux = nullptr;
  float* vector = nullptr;  ///< what an own kernel adds its column or row sums to
};

Operands operands_of(const Gemm& args);

/// A product described to cuBLASLt, which stores matrices by columns: a matrix of ours is the
/// transpose of what it sees in the same memory, so that it is asked for C^T = op(B)^T op(A)^T,
/// with our bias along its rows.
class Matmul {
 public:
  Matmul(const CublasLt& library, const Product& product);

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
  const Product product_;
  Owned<cublasLtMatmulDescOpaque_t> description_;
  Layout first_, second_, result_;
};

}  // namespace trireme::kernels::cuda
