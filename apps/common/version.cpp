#include "version.hpp"

#include <H5public.h>
#include <fmt/format.h>
#include <mpi.h>
#include <openblas_config.h>

#include "trireme_commit.hpp"

#ifdef TRIREME_WITH_CUDA
#include <cuda_runtime_api.h>
#include <nccl.h>
#endif

namespace trireme {
namespace {

#if defined(__clang__)
constexpr const char* kCompiler = "Clang " __clang_version__;
#elif defined(__GNUC__)
constexpr const char* kCompiler = "GCC " __VERSION__;
#else
constexpr const char* kCompiler = "unknown";
#endif

std::string mpi_version() {
#if defined(OMPI_MAJOR_VERSION)
  return fmt::format("Open MPI {}.{}.{}", OMPI_MAJOR_VERSION, OMPI_MINOR_VERSION,
                     OMPI_RELEASE_VERSION);
#elif defined(MPICH_VERSION)
  return fmt::format("MPICH {}", MPICH_VERSION);
#else
  return fmt::format("of the standard {}.{}", MPI_VERSION, MPI_SUBVERSION);
#endif
}

std::string cuda_version() {
#ifdef TRIREME_WITH_CUDA
  return fmt::format("{}.{}", CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
#else
  return "none: built for the host alone";
#endif
}

std::string nccl_version() {
#ifdef TRIREME_WITH_CUDA
  return fmt::format("{}.{}.{} (headers; the library is loaded when a run needs it)", NCCL_MAJOR,
                     NCCL_MINOR, NCCL_PATCH);
#else
  return "none";
#endif
}

/// "OpenBLAS 0.3.21" of " OpenBLAS 0.3.21 ".
std::string blas_version() {
  const std::string text = OPENBLAS_VERSION;
  const std::size_t first = text.find_first_not_of(' ');
  return first == std::string::npos ? text
                                    : text.substr(first, text.find_last_not_of(' ') + 1 - first);
}

}  // namespace

const char* commit() { return TRIREME_COMMIT; }

std::string version_text(const std::string& program) {
  return fmt::format(
      "{} {}\ncommit     {}\ncompiler   {}, -march={}\nCUDA       {}\nNCCL       {}\nMPI        "
      "{}\n"
      "HDF5       {}.{}.{}\nBLAS       {}\n",
      program, TRIREME_VERSION, commit(), kCompiler, *TRIREME_MARCH ? TRIREME_MARCH : "default",
      cuda_version(), nccl_version(), mpi_version(), H5_VERS_MAJOR, H5_VERS_MINOR, H5_VERS_RELEASE,
      blas_version());
}

}  // namespace trireme
