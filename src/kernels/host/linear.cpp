#include <cblas.h>
#include <omp.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <mutex>
#include <vector>

#include "core/error.hpp"
#include "kernels/host/blas.hpp"
#include "kernels/host/compute.hpp"
#include "kernels/linear.hpp"
#include "kernels/preconditions.hpp"

// OpenBLAS's own, in no header: hands out a buffer that no GEMM uses, or maps one more. Weak, as
// a library may keep them to itself.
extern "C" {
[[gnu::weak]] void* blas_memory_alloc(int purpose);
[[gnu::weak]] void blas_memory_free(void* buffer);
}

namespace trireme::kernels::host {

// ---- FP8 operands

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

/// The largest magnitude of `size` elements of x.
template <typename T>
std::uint32_t largest_magnitude(const T* x, std::int64_t size) {
  const std::int64_t blocks = (size + kBlock - 1) / kBlock;
  std::uint32_t largest = 0;
#pragma omp parallel for reduction(max : largest) schedule(static)
  for (std::int64_t block = 0; block < blocks; ++block)
    for (std::int64_t i = block * kBlock; i < std::min(size, (block + 1) * kBlock); ++i)
      largest = std::max(largest, magnitude(static_cast<float>(x[i])));
  return largest;
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
    *a.amax.template as<float>() = std::bit_cast<float>(largest_magnitude(x, a.x.size()));
  });
}

void raise_amax(const Tensor& x) {
  if (!x.amax) return;
  float largest = 0.0f;
  amax({.x = x, .amax = {&largest, DType::f32, {1}}});
  if (magnitude(largest) > magnitude(*x.amax)) *x.amax = largest;
}

void quantize(const Quantize& args) {
  const DType dtype = check_quantize(args);
  const auto [rows, columns] = extents_of("quantize", "x", args.x);
  const std::int64_t size = rows * columns;
  const float factor = fp8_factor(*args.amax.as<float>(), fp8_max(dtype));
  *args.scale.as<float>() = 1.0f / factor;
  float* scaled = values_of(args.x, args.gelu);
  // On GPUs nothing looks whether an operation has raised it.
  TRIREME_CHECK(!args.x.amax || magnitude(*args.x.amax) >= largest_magnitude(scaled, size),
                "quantize: x has larger elements than its amax, {}", *args.x.amax);
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

// ---- OpenBLAS

namespace {

// What a buffer takes on x86-64, and a page for its alignment.
constexpr std::size_t kBufferBytes = (std::size_t{128} << 20) + 4096;

// Every OpenBLAS has room for so many buffers; one built for few cores warns about more.
constexpr int kMaxBuffers = 50;

// Whether the system would grant so much address space. Nothing is reserved, as for many small
// mappings: one large one would be refused for the machine's size alone.
bool is_granted(std::size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return false;
  munmap(memory, bytes);
  return true;
}

}  // namespace

void take_blas_buffers(int threads) {
  static std::mutex mutex;
  static int taken = 0;
  const std::lock_guard lock(mutex);
  if (threads <= taken) return;
  if (!is_granted(static_cast<std::size_t>(threads - taken) * kBufferBytes))
    throw CodedError<ExitCode::failure>(
        "no memory for GEMMs: OpenBLAS takes 128 MiB of address space for {}; raise the limit "
        "(ulimit -v){}",
        threads == 1 ? "its thread" : fmt::format("each of {} threads", threads),
        threads == 1 ? "" : " or lower OMP_NUM_THREADS");
  taken = threads;
  if (!blas_memory_alloc || !blas_memory_free) return;
  std::vector<void*> buffers(static_cast<std::size_t>(std::min(threads, kMaxBuffers)));
  for (void*& buffer : buffers) buffer = blas_memory_alloc(0);
  for (void* buffer : buffers) blas_memory_free(buffer);
}

void use_threads(int threads) {
  omp_set_num_threads(threads);
  openblas_set_num_threads(1);
}

// ---- linear layers

namespace {

// Length of the pieces that the longer side of C is cut into: a power of two of pieces, so that
// they spread evenly, each of 256 or more, so that packing the shared operand again for each piece
// stays below a few percent. The cut depends on the shape alone: OpenBLAS rounds an element
// differently in another place of another piece.
std::int64_t piece_length(std::int64_t length) {
  const std::uint64_t pieces =
      std::bit_floor(static_cast<std::uint64_t>(length < 256 ? 1 : length / 256));
  const std::int64_t even = (length + pieces - 1) / pieces;
  return (even + 31) / 32 * 32;
}

template <typename T>
void add_bias(const T* bias, T* c, std::int64_t rows, std::int64_t columns, std::int64_t stride) {
  for (std::int64_t t = 0; t < rows; ++t) {
    T* row = c + t * stride;
#pragma omp simd
    for (std::int64_t i = 0; i < columns; ++i) row[i] += bias[i];
  }
}

template <typename T>
void multiply(const Gemm& args, std::int64_t m, std::int64_t n, std::int64_t k, T alpha = 1) {
  const T* a = args.a.as<T>();
  const T* b = args.b.as<T>();
  T* c = args.c.as<T>();
  const std::int64_t lda = args.transpose_a ? m : k;
  const std::int64_t ldb = args.transpose_b ? k : n;
  const T beta = static_cast<T>(args.beta);
  const bool cut_rows = m >= n;
  const std::int64_t length = cut_rows ? m : n;
  parallel_blocks(length, piece_length(length), [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t row = cut_rows ? begin : 0;
    const std::int64_t column = cut_rows ? 0 : begin;
    const std::int64_t rows = cut_rows ? end - begin : m;
    const std::int64_t columns = cut_rows ? n : end - begin;
    blas_gemm(args.transpose_a, args.transpose_b, rows, columns, k, alpha,
              a + (args.transpose_a ? row : row * lda), lda,
              b + (args.transpose_b ? column * ldb : column), ldb, beta, c + row * n + column, n);
    if (args.bias) add_bias(args.bias.as<T>() + column, c + row * n + column, rows, columns, n);
  });
}

// One row times a transposed matrix, a linear layer on one token: limited by reading B once, which
// OpenBLAS's GEMM, packing B first, takes three times as long for.
template <typename T>
void multiply_row(const Gemm& args, std::int64_t n, std::int64_t k) {
  const T* b = args.b.as<T>();
  T* c = args.c.as<T>();
  const T beta = static_cast<T>(args.beta);
  parallel_blocks(n, piece_length(n), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) c[i] = beta == 0 ? T{0} : beta * c[i];
    blas_gemv(end - begin, k, b + begin * k, args.a.as<T>(), c + begin);
    if (args.bias) add_bias(args.bias.as<T>() + begin, c + begin, 1, end - begin, n);
  });
}

struct Fp8Operands;

/// Multiplies `values` [rows, k] by the scales of their blocks.
void scale_blocks(float* values, const Tensor& operand, ScaleBlocks blocks) {
  const auto [rows, k] = extents_of("gemm", "operand", operand);
  const ScaleLayout layout = scale_layout(blocks, rows, k);
  parallel_for(rows, [&, k = k](std::int64_t row) {
    for (std::int64_t i = 0; i < k; ++i) values[row * k + i] *= operand.scale[layout.index(row, i)];
  });
}

// The values of the codes are multiplied in fp32, and the sums by both scales, as on GPUs; values
// with scales for blocks, by theirs before.
void multiply_fp8(const Gemm& args) {
  check_fp8_gemm(args);
  float* const memory = scratch<float, Fp8Operands>(args.a.size() + args.b.size());
  Gemm values = args;
  values.a = {memory, DType::f32, args.a.shape};
  values.b = {memory + args.a.size(), DType::f32, args.b.shape};
  convert_to_float(args.a.data, args.a.size(), args.a.dtype, values.a.as<float>());
  convert_to_float(args.b.data, args.b.size(), args.b.dtype, values.b.as<float>());
  const auto [m, k] = extents_of("gemm", "a", args.a);
  const std::int64_t n = extents_of("gemm", "b", args.b).rows;
  const bool blocks = args.blocks_a != ScaleBlocks::tensor;
  if (blocks) {
    scale_blocks(values.a.as<float>(), args.a, args.blocks_a);
    scale_blocks(values.b.as<float>(), args.b, args.blocks_b);
  }
  const float alpha = blocks ? 1.0f : *args.a.scale * *args.b.scale;
  compute(values, args.c.dtype, {&Gemm::bias, &Gemm::c}, {&Gemm::c},
          [=, m = m, k = k](const Gemm& problem, auto) { multiply(problem, m, n, k, alpha); });
}

}  // namespace

void gemm(const Gemm& args) {
  if (is_fp8(args.a.dtype)) return multiply_fp8(args);
  const DType dtype = args.a.dtype;
  const auto [m, n] = extents_of("gemm", "c", args.c);
  const Extents a = extents_of("gemm", "a", args.a);
  const std::int64_t k = args.transpose_a ? a.rows : a.columns;
  TRIREME_CHECK(m <= std::numeric_limits<int>::max() && k <= std::numeric_limits<int>::max(),
                "gemm: {} rows by {}: a side exceeds OpenBLAS's 32-bit sizes", m, k);
  if (m == 0) return;
  check_matrix("gemm", "a", args.a, dtype, args.transpose_a ? Extents{k, m} : Extents{m, k});
  check_matrix("gemm", "b", args.b, dtype, args.transpose_b ? Extents{n, k} : Extents{k, n});
  check_matrix("gemm", "c", args.c, args.c.dtype == dtype ? dtype : accumulation_type(dtype),
               {m, n});
  if (args.bias) check_vector("gemm", "bias", args.bias, dtype, n);
  TRIREME_CHECK(!args.bias || args.beta == 0.0, "gemm: a bias is added with beta 0 only");
  compute(args, dtype, {&Gemm::a, &Gemm::b, &Gemm::bias, &Gemm::c}, {&Gemm::c},
          [k, m = m, n = n](const Gemm& problem, auto zero) {
            using T = decltype(zero);
            if (m == 1 && problem.transpose_b)
              multiply_row<T>(problem, n, k);
            else
              multiply<T>(problem, m, n, k);
          });
}

void linear_gelu(const LinearGelu& args) {
  gemm({.a = args.x, .b = args.weight, .c = args.fc1_out, .transpose_b = true, .bias = args.bias});
  gelu_forward({.x = args.fc1_out, .out = args.gelu_out, .function = args.function});
}

void linear_gelu_gradient(const LinearGeluGradient& args) {
  TRIREME_CHECK(
      args.dfc1_out.data != args.fc1_out.data || args.fc1_out.size() == 0,
      "linear_gelu_gradient: dfc1_out may not be fc1_out, which is read after it is written");
  gemm({.a = args.dy, .b = args.weight, .c = args.dfc1_out});
  gelu_backward({.dout = args.dfc1_out,
                 .x = args.fc1_out,
                 .dx = args.dfc1_out,
                 .dbias = args.dbias,
                 .function = args.function});
}

void linear_gated(const LinearGated& args) {
  gemm({.a = args.x, .b = args.weight, .c = args.fc1_out, .transpose_b = true});
  gated_forward({.x = args.fc1_out, .out = args.gated_out, .function = args.function});
}

void linear_gated_gradient(const LinearGatedGradient& args) {
  gemm({.a = args.dy, .b = args.weight, .c = args.dout});
  gated_backward(
      {.dout = args.dout, .x = args.fc1_out, .dx = args.dfc1_out, .function = args.function});
}

void linear_weight_gradient(const LinearWeightGradient& args) {
  gemm({.a = args.dy, .b = args.x, .c = args.dweight, .transpose_a = true, .beta = 1.0});
  bias_gradient({.dout = args.dy, .dbias = args.dbias});
}

void bias_gradient(const BiasGradient& args) {
  const DType dtype = args.dout.dtype;
  const auto [rows, n] = extents_of("bias_gradient", "dout", args.dout);
  check_matrix("bias_gradient", "dout", args.dout, dtype, {rows, n});
  check_vector("bias_gradient", "dbias", args.dbias, accumulation_type(dtype), n);
  using Args = BiasGradient;
  compute(args, dtype, {&Args::dout}, {}, [rows = rows, n = n](const Args& a, auto zero) {
    using T = decltype(zero);
    const T* dout = a.dout.as<T>();
    add_column_sums(rows, n, a.dbias.as<T>(),
                    [&](std::int64_t t, std::int64_t i) { return dout[t * n + i]; });
  });
  raise_amax(args.dout);
}

}  // namespace trireme::kernels::host
