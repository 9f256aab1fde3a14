// The words inside which byte-pair encoding merges: the pre-tokenizers of GPT-2, Llama 3 and Qwen
// by hand, those of other tokenizer.json files by PCRE2.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/content_hash.hpp"
#include "tokenizer/tokenizer.hpp"

struct pcre2_real_code_8;

namespace trireme::tokenizer {

/// The patterns as tokenizer.json writes them. Sources: GPT-2's encoder.py (Radford et al. 2019,
/// section 2.2); the tokenizer.json of Llama 3 (also of OLMo 2 and SmolLM3) and of Qwen2.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kQwenPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";

/// Splits UTF-8 text at the matches of a pattern, as the tokenizers library's Split with behavior
/// Isolated: what lies between two matches is a word, too. White space (\s) is the Unicode property
/// White_Space; letters (\p{L}) and numbers (\p{N}) are those of Unicode 16, or of a later version
/// that PCRE2 knows; later characters count as symbols. Thread-safe.
class WordPattern {
 public:
  /// Throws DataError for a pattern that PCRE2 does not compile, or understands differently.
  explicit WordPattern(std::string_view pattern);

  /// End of the word that starts at text[begin], begin < text.size(). `text` must be valid UTF-8.
  std::size_t end_of_word(std::string_view text, std::size_t begin) const;

  /// The same by PCRE2 for every pattern; slower.
  std::size_t end_of_word_by_pattern(std::string_view text, std::size_t begin) const;

 private:
  struct Free {
    void operator()(pcre2_real_code_8* code) const;
  };
  enum class Kind { gpt2, llama3, qwen, other };
  Kind kind_;
  std::unique_ptr<pcre2_real_code_8, Free> code_;
};

// GPT-2's tokenizer (Radford et al. 2019, section 2.2): words by a pattern, then byte-pair encoding
// (Sennrich et al. 2016) inside each word; and what other byte-level tokenizers share with it.

/// GPT-2's byte-level BPE: ids equal to those of OpenAI's encoder.py. eod is <|endoftext|>. Throws
/// as make_tokenizer().
std::unique_ptr<Tokenizer> make_gpt2_tokenizer(const std::filesystem::path& vocab,
                                               const std::filesystem::path& merges);

/// The merges in the order in which they apply.
class BytePairEncoder {
 public:
  /// Reads `merges`: after an optional "#version" line, two tokens a line, the highest priority
  /// first. Throws IoError when it cannot be read, DataError with file, line and reason when a line
  /// is malformed or has tokens that `vocabulary` lacks, or when a byte has no token.
  BytePairEncoder(const Vocabulary& vocabulary, const std::filesystem::path& merges);

  /// Two tokens and the one that they become.
  struct Rule {
    std::int32_t left, right, merged;
  };
  /// Ids of single bytes, -1 for bytes that are dropped; the rules, the highest priority first, of
  /// which the later of two for the same pair counts; and words, as bytes, that become one id
  /// before any merge.
  BytePairEncoder(const std::array<std::int32_t, 256>& byte_ids, const std::vector<Rule>& rules,
                  std::unordered_map<std::string, std::int32_t> whole_words);

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
  std::unordered_map<std::string, std::int32_t> whole_words_;
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

/// The caches of the threads that encode concurrently.
class WordCaches {
 public:
  /// One of the caches, for the lifetime of this object.
  class Lease {
   public:
    explicit Lease(WordCaches& caches) : caches_(caches), cache_(caches.take()) {}
    Lease(const Lease&) = delete;
    ~Lease() { caches_.give_back(std::move(cache_)); }
    WordCache& operator*() { return *cache_; }
    WordCache* operator->() { return cache_.get(); }

   private:
    WordCaches& caches_;
    std::unique_ptr<WordCache> cache_;
  };

 private:
  std::unique_ptr<WordCache> take();
  void give_back(std::unique_ptr<WordCache> cache);

  std::mutex mutex_;
  std::vector<std::unique_ptr<WordCache>> idle_;
};

/// A tokenizer whose tokens are strings of bytes: encode() repairs UTF-8, then encode_valid().
class ByteLevelTokenizer : public Tokenizer {
 public:
  std::int32_t vocab_size() const override { return static_cast<std::int32_t>(bytes_.size()); }
  std::optional<std::int32_t> eod() const override { return eod_; }
  std::uint64_t hash() const override { return hash_.value(); }
  std::vector<std::int32_t> encode(std::string_view text) const override;
  std::string decode(std::span<const std::int32_t> ids) const override;

 protected:
  /// Appends the ids of `text`, which is valid UTF-8.
  virtual void encode_valid(std::string_view text, WordCache& cache,
                            std::vector<std::int32_t>& ids) const = 0;

  std::vector<std::string> bytes_;  ///< of each id
  std::optional<std::int32_t> eod_;
  ContentHash hash_;

 private:
  mutable WordCaches caches_;
};

/// The bytes of `token` in GPT-2's byte alphabet, which writes each byte as a printable character;
/// nullopt when a character is not in that alphabet.
std::optional<std::string> bytes_of_token(std::string_view token);

/// `bytes` in that alphabet.
std::string token_of_bytes(std::string_view bytes);

}  // namespace trireme::tokenizer
