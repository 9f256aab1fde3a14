// Element types of tensors, with rounding to and from those of 16 and 8 bits on the host; shapes,
// and views of tensors in some backend's memory.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "core/error.hpp"
#include "core/philox.hpp"

namespace trireme {

/// Storage type of a tensor's elements. f64 serves gradient checks; f32 trains on the host; the
/// 16-bit types bf16 and f16 hold activations and weights on GPUs, and on the host in tests; the
/// 8-bit ones (FP8) hold operands of GEMMs, with scales. Source: Micikevicius et al., "FP8 formats
/// for deep learning" (2022).
///
/// Switches over it name every value and have no `default`: a new type does not compile until each
/// of them handles it.
enum class DType {
  f32,
  f64,
  bf16,
  f16,
  float8_e4m3,  ///< largest 448, no infinity
  float8_e5m2,  ///< largest 57344
};

/// Throws InternalError for a value that is no DType: the end of every switch over them.
[[noreturn]] void throw_unknown_dtype(DType dtype);

/// Bytes of one element.
constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return 8;
    case DType::f32:
      return 4;
    case DType::bf16:
    case DType::f16:
      return 2;
    case DType::float8_e4m3:
    case DType::float8_e5m2:
      return 1;
  }
  throw_unknown_dtype(dtype);
}

/// "fp32", "fp64", "bf16", "fp16", "fp8-e4m3" or "fp8-e5m2".
constexpr std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "fp32";
    case DType::f64:
      return "fp64";
    case DType::bf16:
      return "bf16";
    case DType::f16:
      return "fp16";
    case DType::float8_e4m3:
      return "fp8-e4m3";
    case DType::float8_e5m2:
      return "fp8-e5m2";
  }
  throw_unknown_dtype(dtype);
}

/// The accumulation type of `dtype`, in which sums, statistics, parameter gradients and master
/// copies are kept: fp32 for the 16-bit and 8-bit types, else the type itself.
constexpr DType accumulation_type(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return DType::f64;
    case DType::f32:
    case DType::bf16:
    case DType::f16:
    case DType::float8_e4m3:
    case DType::float8_e5m2:
      return DType::f32;
  }
  throw_unknown_dtype(dtype);
}

constexpr bool is_fp8(DType dtype) {
  return dtype == DType::float8_e4m3 || dtype == DType::float8_e5m2;
}

/// The DType of a C++ type: dtype_of<float> is DType::f32.
template <typename T>
inline constexpr DType dtype_of = DType::f32;
template <>
inline constexpr DType dtype_of<double> = DType::f64;

/// Calls `function(T{})` with the C++ type of `dtype`, fp32 or fp64: the one place where run-time
/// types become templates on the host. Throws InternalError for the 16-bit and 8-bit types, in
/// which the host stores but does not compute.
template <typename Function>
decltype(auto) dispatch(DType dtype, Function&& function) {
  switch (dtype) {
    case DType::f32:
      return function(float{});
    case DType::f64:
      return function(double{});
    case DType::bf16:
    case DType::f16:
    case DType::float8_e4m3:
    case DType::float8_e5m2:
      throw InternalError("the host does not compute in {}", name_of(dtype));
  }
  throw_unknown_dtype(dtype);
}

/// The bits of `value` rounded to bf16, to nearest, ties to even. NaN stays NaN.
inline std::uint16_t to_bf16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<std::uint16_t>(bits >> 16 | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1)) >> 16);
}

/// The value of the bf16 number with these bits.
inline float from_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

/// `a` where `condition`, else `b`, without a branch: the compiler vectorizes no loop with one.
constexpr std::int32_t choose(bool condition, std::int32_t a, std::int32_t b) {
  const std::int32_t mask = -static_cast<std::int32_t>(condition);
  return (a & mask) | (b & ~mask);
}

/// The bits of `value` rounded to fp16 (IEEE binary16), to nearest, ties to even; too large values
/// become infinity.
inline std::uint16_t to_f16(float value) {
  const auto bits = std::bit_cast<std::int32_t>(value);
  const std::int32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7FFFFFFF;
  constexpr std::int32_t kNormal = 0x38800000;  // below, multiples of 2^-24
  const float scaled =
      std::bit_cast<float>(choose(magnitude < kNormal, magnitude, 0)) * 16777216.0f;
  const auto subnormal = static_cast<std::int32_t>(std::nearbyint(scaled));
  const std::int32_t normal = (magnitude - 0x38000000 + 0xFFF + (magnitude >> 13 & 1)) >> 13;
  std::int32_t code = choose(magnitude < kNormal, subnormal, normal);
  code = choose(magnitude >= 0x477FF000, 0x7C00, code);  // rounds above 65504, or infinite
  code = choose(magnitude > 0x7F800000, 0x7E00, code);   // NaN
  return static_cast<std::uint16_t>(sign | code);
}

/// The value of the fp16 number with these bits.
inline float from_f16(std::uint16_t bits) {
  const std::int32_t sign = (bits & 0x8000) << 16, magnitude = bits & 0x7FFF;
  const auto subnormal =
      std::bit_cast<std::int32_t>(static_cast<float>(magnitude) * (1.0f / 16777216.0f));
  std::int32_t code = choose(magnitude < 0x400, subnormal, (magnitude << 13) + 0x38000000);
  code = choose(magnitude >= 0x7C00, 0x7F800000 | (magnitude & 0x3FF) << 13, code);
  return std::bit_cast<float>(sign | code);
}

/// The bits of `value` rounded to FP8, to nearest, ties to even, as the GPU's cvt.rn.satfinite
/// does: larger values and infinities become the largest finite number, every NaN 0x7F.
std::uint8_t to_e4m3(float value);
std::uint8_t to_e5m2(float value);

/// The value of the FP8 number with these bits.
float from_e4m3(std::uint8_t bits);
float from_e5m2(std::uint8_t bits);

/// The largest finite number of an FP8 type.
constexpr float fp8_max(DType dtype) {
  TRIREME_CHECK(is_fp8(dtype), "{} is no FP8 type", name_of(dtype));
  return dtype == DType::float8_e4m3 ? 448.0f : 57344.0f;
}

/// Writes `count` values as elements of `dtype`, rounded once to nearest.
void convert_from_float(const float* values, std::size_t count, DType dtype, void* elements);

/// Writes `count` elements of `dtype` as floats (fp64 is rounded).
void convert_to_float(const void* elements, std::size_t count, DType dtype, float* values);

// ---- the element types of a training run, one for each role of a tensor

/// Each role of a tensor has its own type, so that one of them can change alone: gradients in 16
/// bits, GEMM operands in 8. plan::precision() makes it from the deck's `precision` section.
struct Precision {
  DType weights = DType::f32;      ///< as passes read them
  DType activations = DType::f32;  ///< that passes write and ranks exchange, and their gradients
  DType gemm = DType::f32;  ///< operands of the blocks' linears: the activations' type or FP8
  DType gemm_gradients = DType::f32;  ///< the same of those GEMMs' gradient operands
  DType gradients = DType::f32;       ///< of layers' matrices, as passes sum them
  DType master = DType::f32;          ///< weights as updates and checkpoints have them, and the
                                      ///< gradients of all but layers' matrices
  DType moments = DType::f32;         ///< optimizer state; so far always the master weights' type

  bool operator==(const Precision&) const = default;
};

/// Passes compute in `compute`; gradients are summed, and weights updated, in its accumulation
/// type. Source: Micikevicius et al., "Mixed precision training" (2018).
constexpr Precision mixed_precision(DType compute) {
  const DType sums = accumulation_type(compute);
  return {.weights = compute,
          .activations = compute,
          .gemm = compute,
          .gemm_gradients = compute,
          .gradients = sums,
          .master = sums,
          .moments = sums};
}

// ---- shapes and views

/// Extents of a row-major tensor, outermost first. At most four.
class Shape {
 public:
  /// No axes: one element.
  Shape() = default;
  /// Throws InternalError for more than four extents.
  Shape(std::initializer_list<std::int64_t> extents);

  int rank() const { return rank_; }
  std::int64_t operator[](int axis) const { return extents_[axis]; }
  std::int64_t& operator[](int axis) { return extents_[axis]; }

  /// Number of elements; 1 for a shape without axes.
  std::int64_t size() const;

  /// Product of the extents after `axis`: the stride of `axis` in a contiguous tensor.
  std::int64_t stride(int axis) const;

  bool operator==(const Shape& other) const = default;

 private:
  std::array<std::int64_t, 4> extents_{};
  int rank_ = 0;
};

/// "[3, 4]".
std::string to_string(const Shape& shape);

/// A contiguous row-major tensor in memory that something else owns. Copying a Tensor copies the
/// view.
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::f32;
  Shape shape;
  /// For the elements of types that need one: a value is its element times its scale. One number,
  /// or one for each block (kernels::ScaleLayout), in the memory that `data` is in; null for 1.
  const float* scale = nullptr;
  /// The largest magnitude of the elements, for their conversion to FP8: kernels::Amax says which
  /// operations leave it here as they write them. [1] in the memory that `data` is in; null: no
  /// place for it.
  float* amax = nullptr;

  std::int64_t size() const { return shape.size(); }
  std::size_t bytes() const { return static_cast<std::size_t>(size()) * size_of(dtype); }
  explicit operator bool() const { return data != nullptr; }

  /// The elements as `T`; T must be the tensor's type.
  template <typename T>
  T* as() const {
    TRIREME_CHECK(dtype == dtype_of<T>, "a tensor of {} was asked for {}", name_of(dtype),
                  name_of(dtype_of<T>));
    return static_cast<T*>(data);
  }

  /// The same elements under another shape of equal size.
  Tensor view(Shape other) const {
    TRIREME_CHECK(other.size() == size(), "shape {} cannot be viewed as {}", to_string(shape),
                  to_string(other));
    return {data, dtype, other, scale, amax};
  }

  /// Rows [begin, begin + count) along the first axis, without `amax`.
  Tensor rows(std::int64_t begin, std::int64_t count) const {
    TRIREME_CHECK(begin >= 0 && begin + count <= shape[0], "rows {}+{} of shape {}", begin, count,
                  to_string(shape));
    Shape part = shape;
    part[0] = count;
    return {static_cast<std::byte*>(data) + begin * shape.stride(0) * size_of(dtype), dtype, part,
            scale};
  }
};

// ---- rows that arrive in parts

// How a GEMM and a collective over tensor ranks run at the same time: the rows of a matrix lie in
// equal parts, one for each rank, and flags in GPU memory say which of them are there.

/// Parts of a matrix's rows that other ranks write while a GEMM is enqueued which reads it: part p
/// is there once flags[p] has reached `epoch`. That of this rank, `own`, is there from the start.
struct PartArrivals {
  const std::uint32_t* flags = nullptr;  ///< [parts]; null: all parts are there
  std::uint32_t epoch = 0;
  int parts = 1;
  int own = 0;

  explicit operator bool() const { return flags != nullptr; }
};

/// The rows that GEMMs for compute capability 9.0 compute together, in the tiles of a cluster of
/// two thread blocks: such a GEMM needs parts of a multiple of them.
inline constexpr std::int64_t kPartRowMultiple = 256;

/// Whether a flag of value `shown` has reached `epoch`. Epochs count up modulo 2^32; two that are
/// compared are less than 2^31 apart.
TRIREME_HOST_DEVICE constexpr bool flag_reached(std::uint32_t shown, std::uint32_t epoch) {
  return static_cast<std::int32_t>(shown - epoch) >= 0;
}

}  // namespace trireme
