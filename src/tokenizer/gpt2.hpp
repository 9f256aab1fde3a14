// GPT-2's tokenizer (Radford et al. 2019, section 2.2): words by a pattern, then byte-pair encoding
// (Sennrich et al. 2016) inside each word.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/content_hash.hpp"
#include "tokenizer/tokenizer.hpp"
#include "tokenizer/vocabulary.hpp"

struct pcre2_real_code_8;
struct pcre2_real_match_data_8;

namespace trireme::tokenizer {

/// GPT-2's byte-level BPE: ids equal to those of OpenAI's encoder.py. eod is <|endoftext|>. Throws
/// as make_tokenizer().
std::unique_ptr<Tokenizer> make_gpt2_tokenizer(const std::filesystem::path& vocab,
                                               const std::filesystem::path& merges);

/// Splits UTF-8 text where OpenAI's encoder.py does, with the pattern
///   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
/// (Radford et al. 2019, section 2.2). White space is the Unicode property White_Space, as in
/// Python's regex module; letters and numbers are those of Unicode 16, or of a later
/// version that PCRE2 knows; later characters count as symbols. Not thread-safe.
class Gpt2Words {
 public:
  Gpt2Words();

  /// End of the word that starts at text[begin], begin < text.size(). `text` must be valid UTF-8.
  std::size_t end_of_word(std::string_view text, std::size_t begin);

  /// The same by the pattern alone, without the ASCII path: about ten times slower on ASCII.
  std::size_t end_of_word_by_pattern(std::string_view text, std::size_t begin);

 private:
  struct Free {
    void operator()(pcre2_real_code_8* code) const;
    void operator()(pcre2_real_match_data_8* match) const;
  };
  std::unique_ptr<pcre2_real_code_8, Free> code_;
  std::unique_ptr<pcre2_real_match_data_8, Free> match_;
};

/// The merges in the order in which they apply.
class BytePairEncoder {
 public:
  /// Reads `merges`: after an optional "#version" line, two tokens a line, the highest priority
  /// first. Throws IoError when it cannot be read, DataError with file, line and reason when a line
  /// is malformed or has tokens that `vocabulary` lacks, or when a byte has no token.
  BytePairEncoder(const Vocabulary& vocabulary, const std::filesystem::path& merges);

  /// Appends the ids of `word`, of less than 2^31 bytes: merges the pair of lowest rank, leftmost
  /// first, until no pair has a merge. O(n log n).
  void encode(std::string_view word, std::vector<std::int32_t>& ids) const;

  /// A hash of the merges in their order.
  std::uint64_t hash() const { return hash_.value(); }

 private:
  struct Merge {
    std::int32_t rank;  ///< 0 is merged first
    std::int32_t id;    ///< the merged token
  };
  struct PairHash {
    std::size_t operator()(std::uint64_t pair) const {
      pair *= 0x9E3779B97F4A7C15u;  // 2^64 / golden ratio: mixes both halves
      return static_cast<std::size_t>(pair ^ pair >> 32);
    }
  };
  const Merge* find(std::int32_t left, std::int32_t right) const;

  std::array<std::int32_t, 256> byte_ids_;
  std::unordered_map<std::uint64_t, Merge, PairHash> merges_;
  ContentHash hash_;
};

/// A direct-mapped cache of encoded words: most words of a text are repetitions. Not thread-safe.
class WordCache {
 public:
  /// Appends the ids of `word`, from the cache or by `encoder`.
  void encode(const BytePairEncoder& encoder, std::string_view word,
              std::vector<std::int32_t>& ids);

 private:
  /// One cache line; longer words, or words of more tokens, are not cached.
  struct alignas(64) Entry {
    std::array<char, 34> word;
    std::uint8_t length;  ///< 0: empty
    std::uint8_t count;
    std::array<std::int32_t, 7> ids;
  };
  static_assert(sizeof(Entry) == 64);

  std::vector<Entry> entries_ = std::vector<Entry>(1 << 15);
};

/// The bytes of `token` in GPT-2's byte alphabet, which writes each byte as a printable character;
/// nullopt when a character is not in that alphabet.
std::optional<std::string> bytes_of_token(std::string_view token);

}  // namespace trireme::tokenizer
