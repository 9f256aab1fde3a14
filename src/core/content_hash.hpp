// Hashes and checksums of contents, and the wire types of protocol buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace trireme {

/// A 64-bit hash of pieces of bytes in their order, at several GB/s. It finds changes made by
/// mistake; it does not withstand an attacker.
class ContentHash {
 public:
  /// Adds one piece; its size counts, so that ("ab", "c") and ("a", "bc") differ.
  void add(const void* bytes, std::size_t size);
  void add(std::string_view text) { add(text.data(), text.size()); }

  /// The hash of all pieces so far.
  std::uint64_t value() const;

 private:
  void mix(std::uint64_t word);

  std::uint64_t state_ = 0x243f6a8885a308d3;  // the fraction of pi
};

/// CRC-32C (Castagnoli) of `bytes`, as RFC 3720 has it.
std::uint32_t crc32c(std::string_view bytes);

/// The checksum in TensorFlow's record files: crc32c(), masked so that a checksum of data with
/// checksums in it stays a good one.
std::uint32_t masked_crc32c(std::string_view bytes);

/// How a protocol buffer stores the value of a field: the low three bits of the field's key.
enum class WireType { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

}  // namespace trireme
