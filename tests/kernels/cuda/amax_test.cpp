#include "../amax_operations.hpp"

#include "workbench.hpp"

namespace trireme::kernels {
namespace {

// Rows of one and of several warps, of groups of 16 bytes and of single elements.
TEST(CudaAmax, IsRaisedToThatOfTheResult) {
  for (const DType dtype : kStorageTypes)
    for (const auto& [rows, h] : {std::pair{3, 5}, {33, 130}, {64, 768}, {300, 2560}, {40, 9000}}) {
      Workbench bench(/*on_gpu=*/true, dtype, dtype);
      for_each_raised_amax(bench, rows, h, amax_check(bench));
    }
}

TEST(CudaAmax, IsRaisedToThatOfAttentionsOutput) {
  for (const DType dtype : kStorageTypes)
    for (const std::int64_t d : {20, 64, 128}) {
      Workbench bench(/*on_gpu=*/true, dtype, dtype);
      for_attention_amax(bench, d, amax_check(bench));
    }
}

TEST(CudaAmax, OfNaNIsNaN) {
  for (const DType dtype : kStorageTypes) {
    Workbench bench(/*on_gpu=*/true, dtype, dtype);
    std::vector<double> values(64 * 256, 1.0);
    values[5000] = -std::numeric_limits<double>::quiet_NaN();
    values[5001] = std::numeric_limits<double>::infinity();
    const Tensor place = bench.number_f32(7.0f);
    Tensor dout = bench.given({64, 256}, values);
    dout.amax = place.as<float>();
    bench.backend().bias_gradient({.dout = dout, .dbias = bench.wide_random({256}, 1)});
    EXPECT_TRUE(std::isnan(bench.read(place)[0])) << name_of(dtype);
  }
}

}  // namespace
}  // namespace trireme::kernels
