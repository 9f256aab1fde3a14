// GPT-2's splitting of text into words, before byte pairs are merged inside each.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

struct pcre2_real_code_8;
struct pcre2_real_match_data_8;

namespace trireme::tokenizer {

/// Cuts UTF-8 text where OpenAI's encoder.py does, with the pattern
///   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
/// (Radford et al. 2019, section 2.2). White space is the Unicode property White_Space, as in
/// Python's regex module; letters and numbers are those of Unicode 16, or of a later one
/// that PCRE2 knows; characters assigned since are cut like symbols. For one thread at a time.
class Gpt2Words {
 public:
  Gpt2Words();

  /// End of the word that starts at text[begin], begin < text.size(). `text` must be valid UTF-8.
  std::size_t end_of_word(std::string_view text, std::size_t begin);

  /// The same by the pattern alone: the definition, some ten times slower on ASCII.
  std::size_t end_of_word_by_pattern(std::string_view text, std::size_t begin);

 private:
  struct Free {
    void operator()(pcre2_real_code_8* code) const;
    void operator()(pcre2_real_match_data_8* match) const;
  };
  std::unique_ptr<pcre2_real_code_8, Free> code_;
  std::unique_ptr<pcre2_real_match_data_8, Free> match_;
};

}  // namespace trireme::tokenizer
