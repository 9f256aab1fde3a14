// The words inside which byte-pair encoding merges: the pre-tokenizers of GPT-2, Llama 3 and Qwen
// by hand, those of other tokenizer.json files by PCRE2.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

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

}  // namespace trireme::tokenizer
