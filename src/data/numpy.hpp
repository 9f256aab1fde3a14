// What Megatron-LM's datasets need of numpy: arrays in .npy files, and RandomState draw for draw.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace trireme::data {
/// Element types of the arrays that indices are kept in; little endian.
enum class IntegerType { int32, int64, uint32, int16, uint64, uint16 };

/// A read-only array of one or two axes, row-major, in memory or mapped from an .npy file. Copies
/// share the elements.
class NpyArray {
 public:
  NpyArray() = default;

  /// An array of one axis that takes over `values`: int16_t, int32_t, int64_t, uint32_t or
  /// uint64_t.
  template <typename T>
  explicit NpyArray(std::vector<T> values);

  /// An array [values.size() / columns, columns].
  template <typename T>
  NpyArray(std::vector<T> values, std::int64_t columns);

  /// Maps a file of version 1 to 3. Throws IoError when it cannot be opened, and DataError, naming
  /// it, when it is not a little-endian integer array of one or two axes or has another size than
  /// its header says.
  static NpyArray map(const std::filesystem::path& path);

  IntegerType type() const { return type_; }
  const std::vector<std::int64_t>& shape() const { return shape_; }
  std::int64_t rows() const { return shape_.empty() ? 0 : shape_[0]; }
  std::int64_t columns() const { return shape_.size() < 2 ? 1 : shape_[1]; }

  /// One element as a 64-bit number; uint64_t above 2^63 - 1 becomes negative.
  std::int64_t operator()(std::int64_t row, std::int64_t column = 0) const {
    const std::int64_t index = row * columns() + column;
    switch (type_) {
      case IntegerType::int32:
        return load<std::int32_t>(index);
      case IntegerType::uint32:
        return load<std::uint32_t>(index);
      case IntegerType::int16:
        return load<std::int16_t>(index);
      case IntegerType::uint16:
        return load<std::uint16_t>(index);
      case IntegerType::int64:
      case IntegerType::uint64:
        break;
    }
    return load<std::int64_t>(index);
  }

  /// The bytes of an .npy file, as numpy.save writes them: version 1.0, data from a multiple of 64.
  std::string serialize() const;

 private:
  // A header of unusual length leaves the elements of a mapped file unaligned.
  template <typename T>
  T load(std::int64_t index) const {
    T value;
    std::memcpy(&value, data_ + index * static_cast<std::int64_t>(sizeof value), sizeof value);
    return value;
  }

  IntegerType type_ = IntegerType::int32;
  std::vector<std::int64_t> shape_;
  std::shared_ptr<const void> owner_;
  const std::byte* data_ = nullptr;
};

/// numpy.random.RandomState(seed): MT19937 seeded as std::mt19937 seeds it.
class NumpyRandom {
 public:
  explicit NumpyRandom(std::uint32_t seed) : generator_(seed) {}

  /// Uniform in 0..max, both included: the legacy `random_interval`, by masked rejection. Draws
  /// nothing when max is 0, 64 bits a try (high word first) when max is above 2^32 - 1.
  std::uint64_t interval(std::uint64_t max);

  /// RandomState.random(): uniform in [0, 1) with 53 bits.
  double uniform() {
    const std::uint32_t high = static_cast<std::uint32_t>(generator_()) >> 5;
    const std::uint32_t low = static_cast<std::uint32_t>(generator_()) >> 6;
    return (high * 67108864.0 + low) / 9007199254740992.0;
  }

  /// RandomState.shuffle of a one-dimensional array.
  template <typename T>
  void shuffle(std::span<T> values) {
    for (std::size_t i = values.size(); i-- > 1;) std::swap(values[i], values[interval(i)]);
  }

 private:
  std::mt19937 generator_;
};

}  // namespace trireme::data
