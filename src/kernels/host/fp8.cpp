#include "kernels/fp8.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/host/compute.hpp"
#include "kernels/linear.hpp"
#include "kernels/preconditions.hpp"

namespace trireme::kernels::host {
namespace {

constexpr std::int64_t kBlock = 1 << 16;

// Magnitudes compare as their bits do, and NaN is above infinity: so it is not lost.
std::uint32_t magnitude(float value) { return std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFFu; }

/// [rows, columns] as [columns, rows].
template <typename T>
void transpose(const T* in, std::int64_t rows, std::int64_t columns, T* out) {
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
struct Transposed;

/// x, or its GELU, as floats, in memory of this thread.
float* values_of(const Tensor& x, bool gelu) {
  const std::int64_t size = x.size();
  float* values = scratch<float, Scaled>(size);
  convert_to_float(x.data, size, x.dtype, values);
  if (!gelu) return values;
  float* activated = scratch<float, Activated>(size);
  gelu_forward({.x = {values, DType::f32, x.shape}, .out = {activated, DType::f32, x.shape}});
  return activated;
}

/// Rounds `values` [rows, k] to `out`, with a scale for each of its blocks; leaves the values times
/// their factors.
void round_blocks(float* values, std::int64_t rows, std::int64_t k, ScaleBlocks blocks,
                  const Tensor& out, float* scales) {
  const ScaleLayout layout = scale_layout(blocks, rows, k);
  parallel_blocks(rows, layout.block_rows, [&](std::int64_t top, std::int64_t bottom) {
    for (std::int64_t begin = 0; begin < k; begin += kScaleBlock) {
      const std::int64_t end = std::min(k, begin + kScaleBlock);
      std::uint32_t largest = 0;
      for (std::int64_t row = top; row < bottom; ++row)
        for (std::int64_t i = begin; i < end; ++i)
          largest = std::max(largest, magnitude(values[row * k + i]));
      const float factor = fp8_factor(std::bit_cast<float>(largest), fp8_max(out.dtype));
      scales[layout.index(top, begin)] = 1.0f / factor;
      for (std::int64_t row = top; row < bottom; ++row)
        for (std::int64_t i = begin; i < end; ++i) values[row * k + i] *= factor;
    }
    convert_from_float(values + top * k, (bottom - top) * k, out.dtype,
                       static_cast<std::uint8_t*>(out.data) + top * k);
  });
}

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
  float* scaled = values_of(args.x, args.gelu);
  parallel_blocks(size, kBlock, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) scaled[i] *= factor;
  });
  std::uint8_t* out =
      args.out ? static_cast<std::uint8_t*>(args.out.data) : scratch<std::uint8_t, Rounded>(size);
  convert_from_float(scaled, size, dtype, out);
  if (args.transposed)
    transpose(out, rows, columns, static_cast<std::uint8_t*>(args.transposed.data));
}

void quantize_blocks(const QuantizeBlocks& args) {
  check_quantize_blocks(args);
  const auto [rows, columns] = extents_of("quantize_blocks", "x", args.x);
  float* const values = values_of(args.x, args.gelu);
  if (args.transposed) {
    float* const transposed = scratch<float, Transposed>(rows * columns);
    transpose(values, rows, columns, transposed);
    round_blocks(transposed, columns, rows, args.blocks(), args.transposed,
                 args.transposed_scales.as<float>());
  }
  if (args.out)
    round_blocks(values, rows, columns, args.blocks(), args.out, args.out_scales.as<float>());
}

}  // namespace trireme::kernels::host
