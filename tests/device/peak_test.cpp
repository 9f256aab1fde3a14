#include <gtest/gtest.h>

#include "device/backend.hpp"

namespace trireme::device {
namespace {

TEST(PeakFlops, IsKnownByTheNameThatCudaGives) {
  EXPECT_EQ(peak_flops("NVIDIA H200", DType::bf16), 989.4e12);
  EXPECT_EQ(peak_flops("NVIDIA H100 80GB HBM3", DType::f16), 989.4e12);
  EXPECT_EQ(peak_flops("NVIDIA H100 PCIe", DType::bf16), 756e12);
  EXPECT_EQ(peak_flops("NVIDIA A100-SXM4-80GB", DType::f32), 19.5e12);
  EXPECT_EQ(peak_flops("NVIDIA A10G", DType::bf16), 70e12);
  EXPECT_EQ(peak_flops("NVIDIA L4", DType::bf16), 121e12);
  EXPECT_EQ(peak_flops("NVIDIA L40S", DType::bf16), 362e12);
  EXPECT_EQ(peak_flops("NVIDIA RTX A6000", DType::bf16), 154.8e12);
}

TEST(PeakFlops, IsNotThatOfFp8) {
  EXPECT_THROW(peak_flops("NVIDIA H200", DType::float8_e4m3), InternalError);
}

TEST(PeakFlops, IsZeroForOthers) {
  for (const char* gpu :
       {"", "NVIDIA RTX A4000", "NVIDIA RTX A1000 Laptop GPU", "NVIDIA RTX A3000 12GB Laptop GPU",
        "NVIDIA H20", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D", "NVIDIA GeForce RTX 3090 Ti"})
    EXPECT_EQ(peak_flops(gpu, DType::bf16), 0.0) << gpu;
}

}  // namespace
}  // namespace trireme::device
