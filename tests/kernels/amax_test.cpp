#include <deque>
#include <vector>

#include "amax_operations.hpp"
#include "kernel_testing.hpp"
#include "kernels/operations.hpp"

namespace trireme::kernels {
namespace {

/// Tensors of `dtype` that it owns, and the host's operations.
class HostBench {
 public:
  explicit HostBench(DType dtype) : dtype_(dtype) {}

  struct Backend {
#define TRIREME_CALL(name, Args) \
  static void name(const Args& args) { host::name(args); }
    TRIREME_OPERATIONS(TRIREME_CALL)
#undef TRIREME_CALL
  };
  Backend& backend() { return backend_; }

  Tensor random(Shape shape, std::uint64_t seed, double deviation = 1.0) {
    return make(dtype_, shape, deviation, seed);
  }
  Tensor wide_random(Shape shape, std::uint64_t seed) {
    return make(accumulation_type(dtype_), shape, 1.0, seed);
  }
  Tensor poisoned(Shape shape) { return random(shape, 0, NAN); }
  Tensor wide_poisoned(Shape shape) { return make(accumulation_type(dtype_), shape, NAN, 0); }
  Tensor number_f32(float value) {
    const Tensor tensor = make(DType::f32, {1}, 1.0, 0);
    *tensor.as<float>() = value;
    return tensor;
  }
  std::vector<double> read(const Tensor& tensor) { return {*tensor.as<float>()}; }
  const std::uint64_t* index(std::uint64_t value) { return &indices_.emplace_back(value); }

 private:
  Tensor make(DType dtype, Shape shape, double deviation, std::uint64_t seed) {
    std::vector<std::byte>& memory = memory_.emplace_back(shape.size() * size_of(dtype));
    for (std::int64_t i = 0; i < shape.size(); ++i) {
      const double value = deviation * philox_normal(seed, 0, i);
      if (dtype == DType::f64) {
        reinterpret_cast<double*>(memory.data())[i] = value;
      } else {
        const auto rounded = static_cast<float>(value);
        convert_from_float(&rounded, 1, dtype, memory.data() + i * size_of(dtype));
      }
    }
    return {memory.data(), dtype, shape};
  }

  DType dtype_;
  Backend backend_;
  std::deque<std::vector<std::byte>> memory_;
  std::deque<std::uint64_t> indices_;
};

TEST(RaisedAmax, IsThatOfTheResult) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16})
    for (const auto& [rows, h] : {std::pair{3, 5}, {40, 130}}) {
      HostBench bench(dtype);
      for_each_raised_amax(bench, rows, h, amax_check(bench));
    }
}

TEST(RaisedAmax, IsThatOfAttentionsOutput) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    HostBench bench(dtype);
    for_attention_amax(bench, 20, amax_check(bench));
  }
}

TEST(RaisedAmax, ThatIsTooSmallIsRefused) {
  Owned<float> x({16, 16}, 2.0), amax({1}, 1.0), scale({1});
  std::vector<std::uint8_t> codes(256);
  Tensor known = x.tensor();
  known.amax = amax.tensor().as<float>();
  const Quantize args{.x = known,
                      .amax = amax.tensor(),
                      .scale = scale.tensor(),
                      .out = {codes.data(), DType::float8_e4m3, {16, 16}}};
  EXPECT_THROW(host::quantize(args), InternalError);
  amax[0] = 2.0f;
  host::quantize(args);
  EXPECT_EQ(scale[0], 1.0f / 224.0f);
}

}  // namespace
}  // namespace trireme::kernels
