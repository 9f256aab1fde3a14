// Byte-pair encoding of one word (Sennrich et al. 2016), over bytes as in GPT-2.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/content_hash.hpp"
#include "tokenizer/vocabulary.hpp"

namespace trireme::tokenizer {

/// The merges and the order in which they apply.
class BytePairEncoder {
 public:
  /// Reads `merges`: after an optional "#version" line, two tokens a line, the first line merged
  /// first. Throws IoError when it cannot be read, DataError with file, line and reason when a line
  /// is malformed or speaks of tokens that `vocabulary` lacks, or when a byte has no token.
  BytePairEncoder(const Vocabulary& vocabulary, const std::filesystem::path& merges);

  /// Appends the ids of `word`, of less than 2^31 bytes: merges the pair of lowest rank, leftmost
  /// first, until none is left. Takes O(n log n).
  void encode(std::string_view word, std::vector<std::int32_t>& ids) const;

  /// A hash of the merges in their order.
  std::uint64_t hash() const { return hash_.value(); }

 private:
  struct Merge {
    std::int32_t rank;  ///< 0 is merged first
    std::int32_t id;    ///< what the pair becomes
  };
  struct PairHash {
    std::size_t operator()(std::uint64_t pair) const {
      pair *= 0x9E3779B97F4A7C15u;  // 2^64 / golden ratio: spreads low and high word
      return static_cast<std::size_t>(pair ^ pair >> 32);
    }
  };
  const Merge* find(std::int32_t left, std::int32_t right) const;

  std::array<std::int32_t, 256> byte_ids_;
  std::unordered_map<std::uint64_t, Merge, PairHash> merges_;
  ContentHash hash_;
};

/// A fixed-size memory of the words met last: most words of a text are ones it had before. For one
/// thread at a time.
class WordCache {
 public:
  /// Appends the ids of `word`, from memory or by `encoder`.
  void encode(const BytePairEncoder& encoder, std::string_view word,
              std::vector<std::int32_t>& ids);

 private:
  /// One cache line; a longer word, or one of more tokens, is encoded each time.
  struct alignas(64) Entry {
    std::array<char, 34> word;
    std::uint8_t length;  ///< 0: empty
    std::uint8_t count;
    std::array<std::int32_t, 7> ids;
  };
  static_assert(sizeof(Entry) == 64);

  std::vector<Entry> entries_ = std::vector<Entry>(1 << 15);
};

/// The bytes that `token` stands for in GPT-2's alphabet, which writes every byte as a printable
/// character; none when a character is not of that alphabet.
std::optional<std::string> bytes_of_token(std::string_view token);

}  // namespace trireme::tokenizer
