#include "kernels/fp8.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/gelu.hpp"
#include "kernels/host/compute.hpp"
#include "kernels/preconditions.hpp"

namespace trireme::kernels::host {
namespace {

constexpr std::int64_t kBlock = 1 << 16;

// Magnitudes compare as their bits do, and NaN is above infinity: so it is not lost.
std::uint32_t magnitude(float value) { return std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFFu; }

/// [rows, columns] as [columns, rows], of bytes.
void transpose(const std::uint8_t* in, std::int64_t rows, std::int64_t columns, std::uint8_t* out) {
  constexpr std::int64_t kTile = 32;
  parallel_blocks(columns, kTile, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t top = 0; top < rows; top += kTile)
      for (std::int64_t column = begin; column < end; ++column)
        for (std::int64_t row = top; row < std::min(rows, top + kTile); ++row)
          out[column * rows + row] = in[row * columns + column];
  });
}

struct Scaled;
struct Rounded;
struct Activated;

}  // namespace

void amax(const Amax& args) {
  check_vector("amax", "x", args.x, args.x.dtype, args.x.size());
  check_vector("amax", "amax", args.amax, DType::f32, 1);
  compute(args, args.x.dtype, {&Amax::x}, {}, [](const Amax& a, auto zero) {
    using T = decltype(zero);
    const T* x = a.x.template as<T>();
    if (a.gelu) {
      T* activated = scratch<T, Activated>(a.x.size());
      gelu_forward({.x = a.x, .out = {activated, a.x.dtype, a.x.shape}});
      x = activated;
    }
    const std::int64_t size = a.x.size(), blocks = (size + kBlock - 1) / kBlock;
    std::uint32_t largest = 0;
#pragma omp parallel for reduction(max : largest) schedule(static)
    for (std::int64_t block = 0; block < blocks; ++block)
      for (std::int64_t i = block * kBlock; i < std::min(size, (block + 1) * kBlock); ++i)
        largest = std::max(largest, magnitude(static_cast<float>(x[i])));
    *a.amax.template as<float>() = std::bit_cast<float>(largest);
  });
}

void quantize(const Quantize& args) {
  const DType dtype = check_quantize(args);
  const auto [rows, columns] = extents_of("quantize", "x", args.x);
  const std::int64_t size = rows * columns;
  const float factor = fp8_factor(*args.amax.as<float>(), fp8_max(dtype));
  *args.scale.as<float>() = 1.0f / factor;
  float* scaled = scratch<float, Scaled>(size);
  convert_to_float(args.x.data, size, args.x.dtype, scaled);
  if (args.gelu) {
    float* activated = scratch<float, Activated>(size);
    const Shape shape{rows, columns};
    gelu_forward({.x = {scaled, DType::f32, shape}, .out = {activated, DType::f32, shape}});
    scaled = activated;
  }
  parallel_blocks(size, kBlock, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) scaled[i] *= factor;
  });
  std::uint8_t* out =
      args.out ? static_cast<std::uint8_t*>(args.out.data) : scratch<std::uint8_t, Rounded>(size);
  convert_from_float(scaled, size, dtype, out);
  if (args.transposed)
    transpose(out, rows, columns, static_cast<std::uint8_t*>(args.transposed.data));
}

}  // namespace trireme::kernels::host
