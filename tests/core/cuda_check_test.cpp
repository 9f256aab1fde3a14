#ifdef TRIREME_WITH_CUDA
#include "core/cuda/check.hpp"

#include <gtest/gtest.h>

namespace trireme::cuda {
namespace {

ExitCode code_of(cudaError_t error) {
  try {
    check(error, "a call", "file.cpp", 7);
  } catch (const Error& thrown) {
    return thrown.code();
  }
  return ExitCode::success;
}

TEST(CudaCheck, TellsFullMemoryFromDefects) {
  EXPECT_EQ(code_of(cudaSuccess), ExitCode::success);
  EXPECT_EQ(code_of(cudaErrorMemoryAllocation), ExitCode::failure);
  EXPECT_EQ(code_of(cudaErrorInvalidValue), ExitCode::internal);
}

}  // namespace
}  // namespace trireme::cuda
#endif
