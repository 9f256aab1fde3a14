#include "tokenizer/bpe/bpe.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <cstdint>
#include <limits>
#include <new>
#include <vector>

#include "core/error.hpp"
#include "tokenizer/tokenizer.hpp"

namespace trireme::tokenizer {
namespace {

// White_Space written out: PCRE2's \s also has U+180E, which left that property in Unicode 6.3.
constexpr std::string_view kWhiteSpace =
    "\\x{09}-\\x{0D}\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}"
    "\\x{205F}\\x{3000}";
// Letters and numbers, those of Unicode 15 to 16 written out, which PCRE2 10.42 does not know.
constexpr std::string_view kLetters =
    "\\p{L}"
    "\\x{1C89}-\\x{1C8A}\\x{A7CB}-\\x{A7CD}\\x{A7DA}-\\x{A7DC}\\x{105C0}-\\x{105F3}"
    "\\x{10D4A}-\\x{10D65}\\x{10D6F}-\\x{10D85}\\x{10EC2}-\\x{10EC4}\\x{1123F}-\\x{11240}"
    "\\x{11380}-\\x{11389}\\x{1138B}\\x{1138E}\\x{11390}-\\x{113B5}\\x{113B7}\\x{113D1}\\x{113D3}"
    "\\x{11BC0}-\\x{11BE0}\\x{11F02}\\x{11F04}-\\x{11F10}\\x{11F12}-\\x{11F33}\\x{1342F}"
    "\\x{13441}-\\x{13446}\\x{13460}-\\x{143FA}\\x{16100}-\\x{1611D}\\x{16D40}-\\x{16D6C}"
    "\\x{18CFF}\\x{1B132}\\x{1B155}\\x{1DF25}-\\x{1DF2A}\\x{1E030}-\\x{1E06D}"
    "\\x{1E4D0}-\\x{1E4EB}\\x{1E5D0}-\\x{1E5ED}\\x{1E5F0}\\x{2B739}\\x{2EBF0}-\\x{2EE5D}"
    "\\x{31350}-\\x{323AF}";
constexpr std::string_view kNumbers =
    "\\p{N}"
    "\\x{10D40}-\\x{10D49}\\x{116D0}-\\x{116E3}\\x{11BF0}-\\x{11BF9}\\x{11F50}-\\x{11F59}"
    "\\x{16130}-\\x{16139}\\x{16D70}-\\x{16D79}\\x{1CCF0}-\\x{1CCF9}\\x{1D2C0}-\\x{1D2D3}"
    "\\x{1E4F0}-\\x{1E4F9}\\x{1E5F1}-\\x{1E5FA}";

// ---------------------------------------------------------------------------- PCRE2

pcre2_code* compile(const std::string& pattern) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.c_str()), PCRE2_ZERO_TERMINATED,
                    PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr);
  if (!code) {
    std::array<PCRE2_UCHAR, 256> text{};
    pcre2_get_error_message(error, text.data(), text.size());
    throw DataError("the pattern '{}' has an error at {}: {}", pattern, offset,
                    reinterpret_cast<const char*>(text.data()));
  }
  // Without JIT support the interpreter matches the same, slower.
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  return code;
}

/// The first match at or after `begin` that is not empty: its two ends; both text.size() if there
/// is none.
std::pair<std::size_t, std::size_t> match(const pcre2_code* code, std::string_view text,
                                          std::size_t begin) {
  struct Free {
    void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
  };
  thread_local const std::unique_ptr<pcre2_match_data, Free> data(
      pcre2_match_data_create(1, nullptr));
  if (!data) throw std::bad_alloc();
  const int matched = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                  begin, PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, data.get(), nullptr);
  if (matched == PCRE2_ERROR_NOMATCH) return {text.size(), text.size()};
  if (matched < 0)
    throw DataError("PCRE2 error {} of a tokenizer's pattern at byte {} of a text of {} bytes",
                    matched, begin, text.size());
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data.get());
  return {ends[0], ends[1]};
}

/// `pattern`, which has the syntax of Oniguruma, for PCRE2: with this file's classes.
std::string translate(std::string_view pattern) {
  std::string result;
  bool in_class = false;
  const auto add_class = [&](std::string_view members, bool negated) {
    if (in_class && negated)
      throw DataError("the pattern '{}' has a negated class inside a class: not supported",
                      pattern);
    result += in_class ? std::string(members) : fmt::format("[{}{}]", negated ? "^" : "", members);
  };
  for (std::size_t at = 0; at < pattern.size(); ++at) {
    const std::string_view rest = pattern.substr(at);
    const auto is = [&](std::string_view text) { return rest.starts_with(text); };
    if (is("\\s") || is("\\S")) {
      add_class(kWhiteSpace, is("\\S"));
      ++at;
    } else if (is("\\p{L}") || is("\\P{L}") || is("\\p{N}") || is("\\P{N}")) {
      add_class(is("\\p{L}") || is("\\P{L}") ? kLetters : kNumbers, is("\\P"));
      at += 4;
    } else if (is("\\")) {
      result += rest.substr(0, 2);
      ++at;
    } else {
      if (in_class && (is("[") || is("&&")))
        throw DataError("the pattern '{}' has a class inside a class: not supported", pattern);
      if (is("[")) in_class = true;
      if (is("]")) in_class = false;
      result.push_back(pattern[at]);
    }
  }
  return result;
}

// ---------------------------------------------------------------------------- by hand

/// The classes of characters that the three patterns tell apart.
enum class Class : std::uint8_t { symbol, letter, number, space };

/// The class of each code point.
class Classes {
 public:
  Classes() : classes_(kCodePoints, Class::symbol) {
    std::string all;
    for (char32_t c = 0; c < kCodePoints; ++c)
      if (c < 0xD800 || c > 0xDFFF) append_utf8(all, c);
    mark(all, kLetters, Class::letter);
    mark(all, kNumbers, Class::number);
    mark(all, kWhiteSpace, Class::space);
  }
  Class of(char32_t c) const { return classes_[c]; }

 private:
  static constexpr std::size_t kCodePoints = 0x110000;

  void mark(const std::string& all, std::string_view members, Class value) {
    pcre2_code* code = compile(fmt::format("[{}]+", members));
    for (std::size_t begin = 0; begin < all.size();) {
      const auto [first, end] = match(code, all, begin);
      for (std::size_t at = first; at < end;) {
        const Utf8Step step = read_utf8(all, at);
        classes_[step.code_point] = value;
        at += step.length;
      }
      begin = end;
    }
    pcre2_code_free(code);
  }

  std::vector<Class> classes_;
};

/// A character of valid UTF-8.
struct Character {
  Class kind;
  std::size_t length;
};

Character read(std::string_view text, std::size_t at) {
  static const Classes classes;
  const auto byte = [&](std::size_t i) {
    return static_cast<char32_t>(static_cast<std::uint8_t>(text[at + i]));
  };
  const char32_t first = byte(0);
  if (first < 0x80) return {classes.of(first), 1};
  if (first < 0xE0) return {classes.of((first & 0x1F) << 6 | (byte(1) & 0x3F)), 2};
  if (first < 0xF0)
    return {classes.of((first & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F)), 3};
  return {classes.of((first & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 |
                     (byte(3) & 0x3F)),
          4};
}

/// End of the characters of `kind` from `at` on.
std::size_t end_of_run(std::string_view text, std::size_t at, Class kind) {
  while (at < text.size()) {
    const Character character = read(text, at);
    if (character.kind != kind) break;
    at += character.length;
  }
  return at;
}

bool is_line_break(char c) { return c == '\r' || c == '\n'; }

/// End of the white space at `begin`: before the last character, which belongs to the word after
/// it, unless it is alone. With `break_lines` white space ends after its last line break.
std::size_t end_of_white_space(std::string_view text, std::size_t begin, bool break_lines) {
  std::size_t end = begin, last = begin, after_break = begin;
  while (end < text.size()) {
    const Character character = read(text, end);
    if (character.kind != Class::space) break;
    last = end;
    end += character.length;
    if (is_line_break(text[last])) after_break = end;
  }
  if (break_lines && after_break > begin) return after_break;
  return end < text.size() && last > begin ? last : end;
}

/// Length of the contraction at the start of `text`, or 0. Without case U+017F is an s.
std::size_t contraction_length(std::string_view text, bool any_case) {
  if (text.size() < 2 || text[0] != '\'') return 0;
  const auto letter = [&](std::size_t i) {
    const char c = i < text.size() ? text[i] : '\0';
    return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
  };
  const char first = letter(1), second = letter(2);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
  if ((first == 'r' && second == 'e') || (first == 'v' && second == 'e') ||
      (first == 'l' && second == 'l'))
    return 3;
  return any_case && text.substr(1, 2) == "\u017F" ? 3 : 0;
}

std::size_t end_of_gpt2_word(std::string_view text, std::size_t begin) {
  if (const std::size_t length = contraction_length(text.substr(begin), false))
    return begin + length;
  const bool blank = text[begin] == ' ' && begin + 1 < text.size();
  if (blank)
    if (const Class kind = read(text, begin + 1).kind; kind != Class::space)
      return end_of_run(text, begin + 1, kind);
  const Class kind = read(text, begin).kind;
  return kind == Class::space ? end_of_white_space(text, begin, false)
                              : end_of_run(text, begin, kind);
}

/// The pattern of Llama 3 with numbers of at most `digits` digits; Qwen's with 1.
std::size_t end_of_llama3_word(std::string_view text, std::size_t begin, int digits) {
  if (const std::size_t length = contraction_length(text.substr(begin), true))
    return begin + length;
  const Character first = read(text, begin);
  if (first.kind == Class::letter) return end_of_run(text, begin, Class::letter);
  if (first.kind == Class::number) {
    std::size_t end = begin + first.length;
    while (--digits > 0 && end < text.size()) {
      const Character next = read(text, end);
      if (next.kind != Class::number) break;
      end += next.length;
    }
    return end;
  }
  const std::size_t after = begin + first.length;
  const bool alone = after == text.size();
  const Class next = alone ? Class::space : read(text, after).kind;
  if (next == Class::letter && !is_line_break(text[begin]))
    return end_of_run(text, after, Class::letter);
  if (first.kind == Class::symbol || (text[begin] == ' ' && next == Class::symbol)) {
    std::size_t end = end_of_run(text, after, Class::symbol);
    while (end < text.size() && is_line_break(text[end])) ++end;
    return end;
  }
  return end_of_white_space(text, begin, true);
}

}  // namespace

void WordPattern::Free::operator()(pcre2_code* code) const { pcre2_code_free(code); }

WordPattern::WordPattern(std::string_view pattern)
    : kind_(pattern == kGpt2Pattern     ? Kind::gpt2
            : pattern == kLlama3Pattern ? Kind::llama3
            : pattern == kQwenPattern   ? Kind::qwen
                                        : Kind::other),
      code_(compile(translate(pattern))) {}

std::size_t WordPattern::end_of_word(std::string_view text, std::size_t begin) const {
  switch (kind_) {
    case Kind::gpt2:
      return end_of_gpt2_word(text, begin);
    case Kind::llama3:
      return end_of_llama3_word(text, begin, 3);
    case Kind::qwen:
      return end_of_llama3_word(text, begin, 1);
    case Kind::other:
      break;
  }
  return end_of_word_by_pattern(text, begin);
}

std::size_t WordPattern::end_of_word_by_pattern(std::string_view text, std::size_t begin) const {
  const auto [first, end] = match(code_.get(), text, begin);
  return first > begin ? first : end;
}

std::vector<std::int32_t> ByteLevelTokenizer::encode(std::string_view text) const {
  if (text.size() > std::numeric_limits<std::int32_t>::max())
    throw DataError("a document of {} bytes is too long: the limit is 2 GiB", text.size());
  WordCaches::Lease cache(caches_);
  std::vector<std::int32_t> ids;
  ids.reserve(text.size() / 4);  // English has somewhat more than four bytes a token
  if (valid_utf8_prefix(text) == text.size())
    encode_valid(text, *cache, ids);
  else
    encode_valid(replace_invalid_utf8(text), *cache, ids);
  return ids;
}

std::string ByteLevelTokenizer::decode(std::span<const std::int32_t> ids) const {
  std::string text;
  for (const std::int32_t id : ids) {
    check_id(name(), id, vocab_size());
    text += bytes_[static_cast<std::size_t>(id)];
  }
  return text;
}

namespace {

class Gpt2Tokenizer : public ByteLevelTokenizer {
 public:
  Gpt2Tokenizer(const std::filesystem::path& vocab, const std::filesystem::path& merges)
      : Gpt2Tokenizer(Vocabulary(vocab), merges) {}

  std::string_view name() const override { return "gpt2"; }

 private:
  Gpt2Tokenizer(const Vocabulary& vocabulary, const std::filesystem::path& merges)
      : encoder_(vocabulary, merges) {
    eod_ = vocabulary.find(kEndOfText);
    for (std::int32_t id = 0; id < vocabulary.size(); ++id) {
      const std::string& token = vocabulary.token(id);
      const auto bytes = bytes_of_token(token);
      if (!bytes)
        throw DataError("{}: token '{}' is not written in GPT-2's byte alphabet",
                        vocabulary.path().string(), token);
      hash_.add(*bytes);
      bytes_.push_back(*bytes);
    }
    const std::uint64_t merges_hash = encoder_.hash();
    hash_.add(&merges_hash, sizeof merges_hash);
  }

  void encode_valid(std::string_view text, WordCache& cache,
                    std::vector<std::int32_t>& ids) const override {
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = words_.end_of_word(text, begin);
      cache.encode(encoder_, text.substr(begin, end - begin), ids);
      begin = end;
    }
  }

  BytePairEncoder encoder_;
  WordPattern words_{kGpt2Pattern};
};

}  // namespace

std::unique_ptr<Tokenizer> make_gpt2_tokenizer(const std::filesystem::path& vocab,
                                               const std::filesystem::path& merges) {
  return std::make_unique<Gpt2Tokenizer>(vocab, merges);
}

}  // namespace trireme::tokenizer
