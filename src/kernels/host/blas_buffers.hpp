// Buffers in which OpenBLAS packs the operands of its products.
#pragma once

namespace trireme::kernels::host {

/// Has OpenBLAS take the buffers that products on `threads` threads need: address space that costs
/// memory only where a product writes. Without, its first product would take them, and retry for
/// ever where the system refuses. Once taken they are kept; from any thread.
/// Throws CodedError<ExitCode::failure> where the system refuses so much address space.
void take_blas_buffers(int threads);

}  // namespace trireme::kernels::host
