// cuBLASLt, loaded when a GPU is first used.
#pragma once

#include <cublasLt.h>

#include <type_traits>

#include "core/system/shared_library.hpp"

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

}  // namespace trireme::kernels::cuda
