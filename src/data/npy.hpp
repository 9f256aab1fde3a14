// Integer arrays in numpy's .npy format.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace trireme::data {

/// Element types of the arrays that indices are kept in; little endian.
enum class IntegerType { int32, int64, uint32, int16, uint64 };

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
      default:
        return load<std::int64_t>(index);
    }
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

}  // namespace trireme::data
