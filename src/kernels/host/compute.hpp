// How the host computes an operation: its threads, their scratch memory, the type in which it
// computes on 16-bit tensors, elementary functions, dropout masks.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <vector>

#include "core/philox.hpp"
#include "core/tensor.hpp"
#include "kernels/norms.hpp"

namespace trireme::kernels::host {

/// Makes the host kernels called from this thread use `threads` OpenMP threads, and OpenBLAS one:
/// GEMMs are cut among our threads. No result depends on the number.
void use_threads(int threads);

/// Runs body(i) for i in [0, count), spread over the threads. The body must not throw.
template <typename Body>
void parallel_for(std::int64_t count, const Body& body) {
#pragma omp parallel for schedule(static)
  for (std::int64_t i = 0; i < count; ++i) body(i);
}

/// Cuts [0, count) into blocks of `block` and runs body(begin, end) for each, spread over the
/// threads. The cut does not depend on the number of threads.
template <typename Body>
void parallel_blocks(std::int64_t count, std::int64_t block, const Body& body) {
  parallel_for((count + block - 1) / block, [&](std::int64_t i) {
    const std::int64_t begin = i * block;
    body(begin, begin + block < count ? begin + block : count);
  });
}

/// At least `count` elements of working memory of the calling thread, of any content. It is kept
/// between calls, so that a training loop allocates nothing after its first step; the next call
/// with the same types on this thread hands out the same memory. `Owner` keeps users apart.
template <typename T, typename Owner>
T* scratch(std::size_t count) {
  thread_local std::vector<T> memory;
  if (memory.size() < count) {
    memory = std::vector<T>();  // before the larger one is allocated: the content is not needed
    memory.resize(count);
  }
  return memory.data();
}

// ---- 16-bit types: arithmetic in fp32 on copies of the tensors, results rounded once when they
// are stored. It trains small models for tests; it is not fast.

/// Tensors of an operation's arguments.
template <typename Args>
using Members = std::initializer_list<Tensor Args::*>;

struct HalfStorage;

/// Calls function(args, T{}) with the type T, float or double, in which the host computes on
/// tensors of `dtype`. For a 16-bit type the tensors of `read` and `written` that are of it are
/// replaced by fp32 copies: those of `read` hold their values before the call, those of `written`
/// are rounded back after it. An operation that adds to a tensor names it in both.
template <typename Args, typename Function>
void compute(const Args& args, DType dtype, Members<Args> read, Members<Args> written,
             const Function& function) {
  if (dtype == accumulation_type(dtype)) {
    dispatch(dtype, [&](auto zero) { function(args, zero); });
    return;
  }
  const auto is_copied = [&](const Tensor& tensor) { return tensor && tensor.dtype == dtype; };
  std::size_t count = 0;
  for (const auto& members : {read, written})
    for (const auto member : members)
      if (is_copied(args.*member)) count += (args.*member).size();
  float* memory = scratch<float, HalfStorage>(count);

  Args copies = args;
  const auto widen = [&](Tensor Args::*member) {
    Tensor& copy = copies.*member;
    copy = {memory, DType::f32, copy.shape};
    memory += copy.size();
  };
  for (const auto member : read) {
    if (!is_copied(args.*member)) continue;
    widen(member);
    convert_to_float((args.*member).data, (args.*member).size(), dtype,
                     (copies.*member).template as<float>());
  }
  for (const auto member : written)
    if (is_copied(copies.*member)) widen(member);
  function(copies, float{});
  for (const auto member : written)
    if (is_copied(args.*member))
      convert_from_float((copies.*member).template as<float>(), (args.*member).size(), dtype,
                         (args.*member).data);
}

// ---- elementary functions that vectorise, and sums in double

/// e^x in float: relative error below 1.5e-7 where the result is a normal number, 0 below -104,
/// infinity above 88.73, exact at 0 and -infinity, NaN for NaN. Without branches or calls, so that
/// loops over it become vector code. Cody-Waite reduction x = n ln 2 + r, then a polynomial in r.
inline float exponential(float x) {
  constexpr float kLog2E = 1.44269504f;
  constexpr float kLn2High = 0.693359375f;  // 9 bits: n * kLn2High is exact
  constexpr float kLn2Low = -2.12194440e-4f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to the nearest integer
  x = x < -104.0f ? -104.0f : x;
  x = x > 89.0f ? 89.0f : x;
  const float shifted = x * kLog2E + kRound;
  const float n = shifted - kRound;
  const float r = x - n * kLn2High - n * kLn2Low;
  // Minimax coefficients of Cephes' expf (Moshier) for e^r = 1 + r + r^2 p(r), |r| <= ln(2) / 2.
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  // 2^n in two factors, since n runs from -150 to 128 and one exponent field does not.
  const std::uint32_t exponent = std::bit_cast<std::uint32_t>(shifted) - 0x4B400000u + 254u;
  const std::uint32_t half = exponent >> 1;
  const float low = std::bit_cast<float>(half << 23);
  const float high = std::bit_cast<float>((exponent - half) << 23);
  return p * low * high;
}

/// e^x in double, by the standard library.
inline double exponential(double x) { return std::exp(x); }

/// Sum of f(i) for i in [0, n), accumulated in double in an order that only n fixes: element i goes
/// to one of 16 partial sums by i mod 16, which hides the latency of an addition.
template <typename F>
inline double sum_of(std::int64_t n, const F& f) {
  constexpr std::int64_t kLanes = 16;
  double lanes[kLanes] = {};
  const std::int64_t whole = n / kLanes * kLanes;
  for (std::int64_t i = 0; i < whole; i += kLanes) {
#pragma omp simd
    for (std::int64_t lane = 0; lane < kLanes; ++lane)
      lanes[lane] += static_cast<double>(f(i + lane));
  }
  for (std::int64_t i = whole; i < n; ++i) lanes[i - whole] += static_cast<double>(f(i));
  double sum = 0.0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

/// The largest of x[0 .. n - 1]; -infinity when n is 0.
template <typename T>
inline T largest_of(const T* x, std::int64_t n) {
  T largest = -std::numeric_limits<T>::infinity();
#pragma omp simd reduction(max : largest)
  for (std::int64_t i = 0; i < n; ++i) largest = x[i] > largest ? x[i] : largest;
  return largest;
}

/// Columns that one task of a sum over rows takes: a few cache lines of each row.
inline constexpr std::int64_t kColumnBlock = 64;

/// Adds the sum over t in [0, rows) of element(t, i) to out[i], i in [0, columns). Each column is
/// summed in double in the order of its rows, so the number of threads does not matter.
template <typename T, typename Element>
void add_column_sums(std::int64_t rows, std::int64_t columns, T* out, const Element& element) {
  parallel_blocks(columns, kColumnBlock, [&](std::int64_t begin, std::int64_t end) {
    std::array<double, kColumnBlock> sums{};
    for (std::int64_t t = 0; t < rows; ++t) {
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) sums[i - begin] += element(t, i);
    }
    for (std::int64_t i = begin; i < end; ++i) out[i] = static_cast<T>(out[i] + sums[i - begin]);
  });
}

// ---- dropout masks, drawn many elements at a time

/// The random numbers of one site for one sample of a micro-batch.
inline DropoutStream stream_of(const Dropout& dropout, std::int64_t sample_in_batch) {
  const std::uint64_t first = dropout.first_sample ? *dropout.first_sample : 0;
  return {.seed = dropout.seed,
          .sample = first + static_cast<std::uint64_t>(sample_in_batch),
          .layer = dropout.layer,
          .site = dropout.site};
}

/// Writes the factors of elements first .. first + count - 1 to `factors`: 0 where
/// dropped(words, i), else `kept`. random.words(block) are the words of kPerBlock elements; `words`
/// are those of some blocks, and i counts elements from the first of these.
template <std::int64_t kPerBlock, typename Random, typename T, typename Dropped>
void draw_factors(const Random& random, std::uint64_t first, std::int64_t count, T kept,
                  const Dropped& dropped, T* factors) {
  constexpr std::int64_t kBlocks = 256;  // 4 KiB of words: they stay in the first cache
  while (count > 0) {
    const std::int64_t offset = first % kPerBlock;
    const std::int64_t taken = std::min<std::int64_t>(count, kPerBlock * kBlocks - offset);
    const std::int64_t blocks = (offset + taken + kPerBlock - 1) / kPerBlock;
    std::array<std::uint32_t, 4 * kBlocks> words;
    const Random local = random;
#pragma omp simd
    for (std::int64_t i = 0; i < blocks; ++i) {
      const Philox4 four = local.words(first / kPerBlock + i);
      words[4 * i] = four.x;
      words[4 * i + 1] = four.y;
      words[4 * i + 2] = four.z;
      words[4 * i + 3] = four.w;
    }
#pragma omp simd
    for (std::int64_t i = 0; i < taken; ++i)
      factors[i] = dropped(words.data(), offset + i) ? T{0} : kept;
    first += taken;
    factors += taken;
    count -= taken;
  }
}

/// The dropout mask of one site for one sample of a micro-batch.
class DropoutMask {
 public:
  DropoutMask(const Dropout& dropout, std::int64_t sample_in_batch)
      : stream_(stream_of(dropout, sample_in_batch)),
        threshold_(dropout_threshold(dropout.probability)),
        kept_(1.0 / (1.0 - dropout.probability)) {}

  /// Writes the factors of elements first .. first + count - 1 of the stream to `factors`: 0 where
  /// dropped, 1 / (1 - p) where kept.
  template <typename T>
  void draw(std::uint64_t first, std::int64_t count, T* factors) const {
    draw_factors<4>(
        stream_, first, count, static_cast<T>(kept_),
        [threshold = threshold_](const std::uint32_t* words, std::int64_t i) {
          return words[i] < threshold;
        },
        factors);
  }

 private:
  DropoutStream stream_;
  std::uint32_t threshold_;
  double kept_;
};

/// The factors of one row of h features, position `position` of sample `sample_in_batch`, in memory
/// that this thread's next call reuses.
template <typename T>
const T* draw_row(const Dropout& dropout, std::int64_t position, std::int64_t sample_in_batch,
                  std::int64_t h) {
  T* factors = scratch<T, DropoutMask>(h);
  DropoutMask(dropout, sample_in_batch).draw(position * h, h, factors);
  return factors;
}

/// Throws InternalError unless the probability lies in [0, 1).
void check_dropout(const char* op, const Dropout& dropout);

}  // namespace trireme::kernels::host
