// OpenBLAS: its GEMMs, and the memory that it works in.
#pragma once

#include <cblas.h>

#include <cstdint>

namespace trireme::kernels::host {

/// C = alpha op(A) op(B) + beta C with op(A) [m, k], op(B) [k, n] and leading dimensions as stored.
inline void blas_gemm(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n,
                      std::int64_t k, float alpha, const float* a, std::int64_t lda, const float* b,
                      std::int64_t ldb, float beta, float* c, std::int64_t ldc) {
  cblas_sgemm(CblasRowMajor, transpose_a ? CblasTrans : CblasNoTrans,
              transpose_b ? CblasTrans : CblasNoTrans, m, n, k, alpha, a, lda, b, ldb, beta, c,
              ldc);
}
inline void blas_gemm(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n,
                      std::int64_t k, double alpha, const double* a, std::int64_t lda,
                      const double* b, std::int64_t ldb, double beta, double* c, std::int64_t ldc) {
  cblas_dgemm(CblasRowMajor, transpose_a ? CblasTrans : CblasNoTrans,
              transpose_b ? CblasTrans : CblasNoTrans, m, n, k, alpha, a, lda, b, ldb, beta, c,
              ldc);
}

/// y += A x with A [m, n], both contiguous.
inline void blas_gemv(std::int64_t m, std::int64_t n, const float* a, const float* x, float* y) {
  cblas_sgemv(CblasRowMajor, CblasNoTrans, m, n, 1.0f, a, n, x, 1, 1.0f, y, 1);
}
inline void blas_gemv(std::int64_t m, std::int64_t n, const double* a, const double* x, double* y) {
  cblas_dgemv(CblasRowMajor, CblasNoTrans, m, n, 1.0, a, n, x, 1, 1.0, y, 1);
}

/// Has OpenBLAS take the buffers that GEMMs on `threads` threads need: address space that costs
/// memory only where a GEMM writes. Without, its first GEMM would take them, and retry for
/// ever where the system refuses. Once taken they are kept; from any thread.
/// Throws CodedError<ExitCode::failure> where the system refuses so much address space.
void take_blas_buffers(int threads);

}  // namespace trireme::kernels::host
