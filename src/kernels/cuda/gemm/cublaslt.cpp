#include "kernels/cuda/gemm/cublaslt.hpp"

#include "core/error.hpp"
#include "core/system/identity.hpp"

namespace trireme::kernels::cuda {

CublasLt::CublasLt()
    : library_({fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR),
                fmt::format("/usr/local/cuda/lib64/libcublasLt.so.{}", CUBLAS_VER_MAJOR)},
               fmt::format("run.device = cuda needs cuBLAS {} of the CUDA toolkit; add its folder "
                           "to LD_LIBRARY_PATH",
                           CUBLAS_VER_MAJOR)) {
  TRIREME_CUBLASLT(*this, Create(&handle));
}

CublasLt::~CublasLt() { Destroy(handle); }

void CublasLt::check(cublasStatus_t status, const char* call, const char* file, int line) const {
  if (status == CUBLAS_STATUS_SUCCESS) [[likely]]
    return;
  throw InternalError("{}:{}: {} failed on {}: {} ({})", file, line, call, process_identity(),
                      GetStatusString(status), GetStatusName(status));
}

}  // namespace trireme::kernels::cuda
