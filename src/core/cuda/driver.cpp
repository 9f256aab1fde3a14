#include "core/cuda/driver.hpp"

#include "core/cuda/check.hpp"

namespace trireme::cuda {

void* driver_function(const char* name) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  TRIREME_CUDA(cudaGetDriverEntryPointByVersion(name, &address, 12000, cudaEnableDefault, &found));
#else
  TRIREME_CUDA(cudaGetDriverEntryPoint(name, &address, cudaEnableDefault, &found));
#endif
  TRIREME_CHECK(found == cudaDriverEntryPointSuccess,
                "the driver has no {}: it is older than CUDA 12", name);
  return address;
}

void check_driver(CUresult code, const std::string& what) {
  if (code == CUDA_SUCCESS) return;
  static const auto text_of =
      reinterpret_cast<decltype(&cuGetErrorString)>(driver_function("cuGetErrorString"));
  const char* text = nullptr;
  text_of(code, &text);
  throw InternalError("{}: {} (error {} of the CUDA driver)", what, text ? text : "unknown error",
                      static_cast<int>(code));
}

}  // namespace trireme::cuda
