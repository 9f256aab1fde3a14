// Byte-level BPE in the form of Hugging Face's tokenizer.json: reading it, and training one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

#include "tokenizer/bpe/gpt2.hpp"
#include "tokenizer/tokenizer.hpp"

namespace trireme::tokenizer {

/// The tokenizer of a tokenizer.json: ids equal to those of the tokenizers library without its
/// post-processor, which adds tokens before and after a text. Reads byte-level BPE: model BPE (with
/// ignore_merges), added tokens, which are found in the text as the library finds them, the
/// normalizers NFC, NFD, NFKC and NFKD, the pre-tokenizers ByteLevel, Split with behavior Isolated
/// and Digits, and sequences of them. eod is the eos_token of the tokenizer_config.json next to the
/// file, else the first of <|endoftext|>, <|end_of_text|>, </s> that the vocabulary has. Throws as
/// make_tokenizer(); DataError that names what is of another kind.
std::unique_ptr<Tokenizer> make_bpe_tokenizer(const std::filesystem::path& json);

/// The normalization form NFC of `text`, which must be valid UTF-8.
std::string normalize_nfc(std::string_view text);

/// Counts the words of texts and makes a byte-level BPE vocabulary of them.
class BpeTrainer {
 public:
  /// `pattern` is "gpt2", "llama3" or "qwen". Throws UsageError for another.
  explicit BpeTrainer(const std::string& pattern);

  /// Counts the words of `text`.
  void add(std::string_view text);

  /// A tokenizer.json with `size` ids: <|endoftext|>, the 256 bytes, then the results of merges,
  /// the most frequent pair first; of equally frequent ones that of the lower ids (as
  /// BpeTrainer of the tokenizers library). Throws UsageError for a size below 257; DataError for
  /// texts that have fewer pairs that occur twice.
  std::string train(std::int32_t size) const;

 private:
  std::string_view pattern_;
  bool nfc_;  ///< Qwen's normalizer
  WordPattern words_;
  std::unordered_map<std::string, std::int64_t> counts_;
};

}  // namespace trireme::tokenizer
