#include "checkpoint/file.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string_view>

#include "checkpoint/elements.hpp"
#include "core/error.hpp"
#include "core/files.hpp"

namespace trireme::checkpoint {

// ---- of tensors

namespace {

/// The finaliser of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number
/// generators", OOPSLA 2014): one to one, so that any change of `bits` changes the term.
constexpr std::uint64_t mix(std::uint64_t index, std::uint64_t bits) {
  std::uint64_t z = bits + (index + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

/// The sum of squares of 0 .. n - 1, modulo 2^64; n below 2^42.
std::uint64_t sum_of_squares_below(std::int64_t n) {
  const auto wide = static_cast<unsigned __int128>(n);
  return n == 0 ? 0 : static_cast<std::uint64_t>((wide - 1) * wide * (2 * wide - 1) / 6);
}

/// Calls `function(begin, end)` with the ranges of global indices of each slab, in memory order.
template <typename Function>
void for_each_range(const Shape& shape, const grid::Hyperslabs& slabs, Function&& function) {
  const std::int64_t width = grid::whole_tensor(shape).columns;
  for (const grid::Hyperslab& slab : slabs) {
    if (slab.columns == width) {
      function(slab.row * width, (slab.row + slab.rows) * width);
      continue;
    }
    for (std::int64_t row = slab.row; row < slab.row + slab.rows; ++row) {
      const std::int64_t begin = row * width + slab.column;
      function(begin, begin + slab.columns);
    }
  }
}

// ---- version 2: a multilinear hash (Lemire, Kaser, "Strongly universal string hashing is fast",
// The Computer Journal 2014). 64-bit weights are applied to words of 32 bits, so that the change of
// one word always changes the sum.

constexpr std::int64_t kBlock = 2048;  ///< weights: 16 KiB, half of a first-level cache

/// The weights of a block's words, odd, as halves: AVX2 multiplies 32 by 32 bits.
struct Weights {
  alignas(64) std::array<std::uint32_t, kBlock> low{}, high{};
  explicit constexpr Weights(std::uint64_t seed) {
    for (std::int64_t i = 0; i < kBlock; ++i) {
      const std::uint64_t weight = mix(static_cast<std::uint64_t>(i), seed) | 1;
      low[i] = static_cast<std::uint32_t>(weight);
      high[i] = static_cast<std::uint32_t>(weight >> 32);
    }
  }
};
const Weights kWeights(0x243F6A8885A308D3u);

/// The sum of `count` words with the weights from `position` on.
std::uint64_t weighted_sum(const std::uint32_t* words, std::int64_t position, std::int64_t count) {
  const std::uint32_t* low = kWeights.low.data() + position;
  const std::uint32_t* high = kWeights.high.data() + position;
  std::uint64_t low_sum = 0, high_sum = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    low_sum += static_cast<std::uint64_t>(words[i]) * low[i];
    high_sum += static_cast<std::uint64_t>(words[i]) * high[i];
  }
  return low_sum + (high_sum << 32);
}

/// The checksum of the words [begin, end) of a tensor.
std::uint64_t multilinear(std::int64_t begin, std::int64_t end, const std::uint32_t* words) {
  std::uint64_t sum = 0;
  while (begin < end) {
    const std::int64_t position = begin % kBlock;
    const std::int64_t count = std::min(end - begin, kBlock - position);
    const std::uint64_t of_block = mix(static_cast<std::uint64_t>(begin / kBlock), 0) | 1;
    sum += of_block * weighted_sum(words, position, count);
    words += count;
    begin += count;
  }
  return sum;
}

/// Version 1: the sum of a mix of each element's index and bits.
template <typename Real>
std::uint64_t sum_of_mixes(std::int64_t begin, std::int64_t end, const Real* elements) {
  using Bits = std::conditional_t<sizeof(Real) == 8, std::uint64_t, std::uint32_t>;
  std::uint64_t sum = 0;
  for (std::int64_t i = begin; i < end; ++i)
    sum += mix(static_cast<std::uint64_t>(i), std::bit_cast<Bits>(*elements++));
  return sum;
}

}  // namespace

std::uint64_t checksum(std::int64_t version, const Shape& shape, DType dtype,
                       const grid::Hyperslabs& slabs, const void* data) {
  return dispatch(dtype, [&](auto zero) {
    using Real = decltype(zero);
    constexpr std::int64_t kWords = sizeof(Real) / sizeof(std::uint32_t);
    const Real* next = static_cast<const Real*>(data);
    std::uint64_t sum = 0;
    for_each_range(shape, slabs, [&](std::int64_t begin, std::int64_t end) {
      sum += version == 1 ? sum_of_mixes(begin, end, next)
                          : multilinear(begin * kWords, end * kWords,
                                        reinterpret_cast<const std::uint32_t*>(next));
      next += end - begin;
    });
    return sum;
  });
}

std::uint64_t index_moment(const Shape& shape, const grid::Hyperslabs& slabs) {
  std::uint64_t sum = 0;
  for_each_range(shape, slabs, [&](std::int64_t begin, std::int64_t end) {
    sum += sum_of_squares_below(end) - sum_of_squares_below(begin);
  });
  return sum;
}

// ---- of the structure

namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::string_view kMagic = "TRIREME\n";
/// Bytes of the count, the hash and the magic.
constexpr std::int64_t kEndBytes = 24;

/// Adds the bytes [begin, end) of a file to `hash`.
void add_range(ContentHash& hash, const ReadAt& read, std::int64_t begin, std::int64_t end) {
  std::vector<char> buffer(std::min<std::int64_t>(std::max<std::int64_t>(end - begin, 0), 1 << 20));
  while (begin < end) {
    const std::int64_t bytes = std::min<std::int64_t>(end - begin, std::ssize(buffer));
    read(buffer.data(), bytes, begin);
    hash.add(buffer.data(), static_cast<std::size_t>(bytes));
    begin += bytes;
  }
}

/// The hash of an HDF5 file of `file_bytes` without `elements`, which are sorted, and of `table`,
/// the trailer up to the hash.
std::uint64_t structure_hash(const std::vector<ElementRange>& elements, std::int64_t file_bytes,
                             std::string_view table, const ReadAt& read) {
  ContentHash hash;
  std::int64_t at = 0;
  for (const ElementRange& range : elements) {
    add_range(hash, read, at, range.offset);
    at = range.offset + range.bytes;
  }
  add_range(hash, read, at, file_bytes);
  hash.add(table);
  return hash.value();
}

template <typename Number>
void append(std::string& text, Number number) {
  text.append(reinterpret_cast<const char*>(&number), sizeof number);
}

[[noreturn]] void fail(const std::filesystem::path& path) {
  throw DataError(
      "'{}' is not a readable checkpoint: its structure is damaged: its checksum does not match",
      path.string());
}

/// The ranges in `table`; they must follow each other within `file_bytes`.
std::vector<ElementRange> parse_ranges(const std::string& table, std::int64_t count,
                                       std::int64_t file_bytes, const std::filesystem::path& path) {
  std::vector<ElementRange> ranges(static_cast<std::size_t>(count));
  if (count > 0) std::memcpy(ranges.data(), table.data(), ranges.size() * sizeof ranges[0]);
  std::int64_t end = 0;
  for (const ElementRange& range : ranges) {
    if (range.offset < end || range.bytes < 0 || range.bytes > file_bytes - range.offset)
      fail(path);
    end = range.offset + range.bytes;
  }
  return ranges;
}

}  // namespace

std::string structure_trailer(std::vector<ElementRange> elements, std::int64_t file_bytes,
                              const ReadAt& read) {
  std::ranges::sort(elements, {}, &ElementRange::offset);
  std::string trailer;
  for (const ElementRange& range : elements) {
    append(trailer, range.offset);
    append(trailer, range.bytes);
  }
  append(trailer, static_cast<std::int64_t>(elements.size()));
  append(trailer, structure_hash(elements, file_bytes, trailer, read));
  return trailer.append(kMagic);
}

bool verify_structure(const std::filesystem::path& path) {
  const InputFile file(path);
  const std::int64_t size = file.size();
  if (size < kEndBytes) return false;
  struct {
    std::int64_t count;
    std::uint64_t hash;
    std::array<char, 8> magic;
  } end;
  static_assert(sizeof end == kEndBytes);
  file.read(&end, kEndBytes, size - kEndBytes);
  if (std::string_view(end.magic.data(), end.magic.size()) != kMagic) return false;
  constexpr std::int64_t kRangeBytes = sizeof(ElementRange);
  if (end.count < 0 || end.count > (size - kEndBytes) / kRangeBytes) fail(path);
  const std::int64_t file_bytes = size - kEndBytes - end.count * kRangeBytes;
  std::string table(static_cast<std::size_t>(end.count * kRangeBytes + 8), '\0');
  file.read(table.data(), std::ssize(table), file_bytes);
  const std::vector<ElementRange> elements = parse_ranges(table, end.count, file_bytes, path);
  const auto read = [&](void* data, std::int64_t bytes, std::int64_t offset) {
    file.read(data, bytes, offset);
  };
  if (structure_hash(elements, file_bytes, table, read) != end.hash) fail(path);
  return true;
}

}  // namespace trireme::checkpoint
