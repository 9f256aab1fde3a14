// Byte-level BPE: GPT-2's files, and the form of tokenizer.json.
#pragma once

#include <unicode/normalizer2.h>
#include <nlohmann/json.hpp>

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

#include "core/error.hpp"
#include "core/files.hpp"
#include "tokenizer/tokenizer.hpp"

struct pcre2_real_code_8;

namespace trireme::tokenizer {

// The words inside which byte-pair encoding merges: the pre-tokenizers of GPT-2, Llama 3 and Qwen
// by hand, those of other tokenizer.json files by PCRE2.

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

// The parts of a tokenizer.json that prepare a text for byte-pair encoding: added tokens,
// normalizers and pre-tokenizers.

/// Reads values of a tokenizer.json. All errors are DataErrors that name the file.
class JsonFile {
 public:
  using json = nlohmann::json;

  /// Throws IoError when the file cannot be read.
  explicit JsonFile(const std::filesystem::path& path);

  const json& root() const { return root_; }

  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> text, Args&&... args) const {
    throw DataError("{}: {}", path_, fmt::format(text, std::forward<Args>(args)...));
  }

  /// The member `key` of `object`; null if it is absent.
  static const json& member(const json& object, const char* key);
  bool flag(const json& object, const char* key, bool fallback = false) const;
  std::string text(const json& object, const char* key) const;
  /// `value` as the id of `token`.
  std::int32_t id(const json& value, const std::string& token) const;
  /// The list `key` of `object`.
  const json& list(const json& object, const char* key) const;

 private:
  std::string path_;
  json root_;
};

/// A token that is found in the text before it is split into words.
struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool single_word = false;  ///< not next to a letter, number or underscore
  bool lstrip = false;       ///< takes the white space before it
  bool rstrip = false;       ///< takes the white space after it
};

/// Added tokens that are searched in one pass, the leftmost first, the longest of those.
class AddedTokens {
 public:
  void add(AddedToken token);
  /// To be called after the last add().
  void finish();

  /// Calls `take` with the texts between the tokens and appends the tokens' ids to `ids`, in the
  /// order of `text`, which must be valid UTF-8.
  template <typename Take>
  void split(std::string_view text, std::vector<std::int32_t>& ids, const Take& take) const {
    std::size_t begin = 0;
    for (Match match; find(text, begin, match); begin = match.end) {
      if (match.begin > begin) take(text.substr(begin, match.begin - begin));
      ids.push_back(match.id);
    }
    if (begin < text.size()) take(text.substr(begin));
  }

 private:
  /// A token in a text, and the white space that it takes.
  struct Match {
    std::size_t begin = 0, end = 0;
    std::int32_t id = 0;
  };
  /// Finds the first token at or after `begin`.
  bool find(std::string_view text, std::size_t begin, Match& match) const;
  const AddedToken* token_at(std::string_view text, std::size_t at) const;

  std::array<std::vector<AddedToken>, 256> by_first_byte_;
};

/// Unicode's normalization forms NFC, NFD, NFKC and NFKD, and sequences of them.
class Normalizers {
 public:
  /// None.
  Normalizers() = default;
  /// The "normalizer" of the file.
  explicit Normalizers(const JsonFile& file);

  bool empty() const { return forms_.empty(); }
  /// `text`, which must be valid UTF-8, normalized.
  std::string operator()(std::string text) const;

 private:
  void read(const JsonFile& file, const nlohmann::json& value);

  std::vector<const icu::Normalizer2*> forms_;
};

/// ByteLevel, Split with behavior Isolated, Digits, and sequences of them.
class PreTokenizer {
 public:
  /// No steps: a text is one word.
  PreTokenizer() = default;
  /// The "pre_tokenizer" of the file, which must end in ByteLevel.
  explicit PreTokenizer(const JsonFile& file);

  /// Calls `take` with the words of `text`, which must be valid UTF-8: the steps from `step` on.
  template <typename Take>
  void for_each_word(std::string_view text, const Take& take, std::size_t step = 0) const {
    if (text.empty()) return;
    if (step == steps_.size()) return take(text);
    if (steps_[step].kind == Step::Kind::prefix) {
      if (text.starts_with(' ')) return for_each_word(text, take, step + 1);
      return for_each_word(fmt::format(" {}", text), take, step + 1);
    }
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = end_of_part(steps_[step], text, begin);
      for_each_word(text.substr(begin, end - begin), take, step + 1);
      begin = end;
    }
  }

 private:
  /// One step of pre-tokenization.
  struct Step {
    enum class Kind { pattern, digits, digit, prefix } kind;
    std::shared_ptr<const WordPattern> pattern = nullptr;
  };
  bool read(const JsonFile& file, const nlohmann::json& value);
  /// The end of the part that begins at `begin`, of all steps but prefix.
  static std::size_t end_of_part(const Step& step, std::string_view text, std::size_t begin);

  std::vector<Step> steps_;
};

/// Whether `text` has no byte above 0x7F: normalization leaves it as it is.
bool is_ascii(std::string_view text);

}  // namespace trireme::tokenizer
