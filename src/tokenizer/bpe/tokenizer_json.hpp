// The parts of a tokenizer.json that prepare a text for byte-pair encoding: added tokens,
// normalizers and pre-tokenizers.
#pragma once

#include <unicode/normalizer2.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "tokenizer/bpe/gpt2.hpp"

namespace trireme::tokenizer {

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
