#define PCRE2_CODE_UNIT_WIDTH 8
#include "tokenizer/gpt2.hpp"

#include <pcre2.h>

#include <limits>
#include <mutex>

#include "core/error.hpp"
#include "tokenizer/utf8.hpp"

namespace trireme::tokenizer {
namespace {

// White_Space written out: PCRE2's \s has U+180E besides, which left that property in Unicode 6.3.
#define WHITE_SPACE                                                                             \
  "\\x{09}-\\x{0D}\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}" \
  "\\x{205F}\\x{3000}"
// Letters and numbers, those of Unicode 15 to 16 written out, which PCRE2 10.42 does not know.
#define LETTERS                                                                                  \
  "\\p{L}"                                                                                       \
  "\\x{1C89}-\\x{1C8A}\\x{A7CB}-\\x{A7CD}\\x{A7DA}-\\x{A7DC}\\x{105C0}-\\x{105F3}"               \
  "\\x{10D4A}-\\x{10D65}\\x{10D6F}-\\x{10D85}\\x{10EC2}-\\x{10EC4}\\x{1123F}-\\x{11240}"         \
  "\\x{11380}-\\x{11389}\\x{1138B}\\x{1138E}\\x{11390}-\\x{113B5}\\x{113B7}\\x{113D1}\\x{113D3}" \
  "\\x{11BC0}-\\x{11BE0}\\x{11F02}\\x{11F04}-\\x{11F10}\\x{11F12}-\\x{11F33}\\x{1342F}"          \
  "\\x{13441}-\\x{13446}\\x{13460}-\\x{143FA}\\x{16100}-\\x{1611D}\\x{16D40}-\\x{16D6C}"         \
  "\\x{18CFF}\\x{1B132}\\x{1B155}\\x{1DF25}-\\x{1DF2A}\\x{1E030}-\\x{1E06D}"                     \
  "\\x{1E4D0}-\\x{1E4EB}\\x{1E5D0}-\\x{1E5ED}\\x{1E5F0}\\x{2B739}\\x{2EBF0}-\\x{2EE5D}"          \
  "\\x{31350}-\\x{323AF}"
#define NUMBERS                                                                          \
  "\\p{N}"                                                                               \
  "\\x{10D40}-\\x{10D49}\\x{116D0}-\\x{116E3}\\x{11BF0}-\\x{11BF9}\\x{11F50}-\\x{11F59}" \
  "\\x{16130}-\\x{16139}\\x{16D70}-\\x{16D79}\\x{1CCF0}-\\x{1CCF9}\\x{1D2C0}-\\x{1D2D3}" \
  "\\x{1E4F0}-\\x{1E4F9}\\x{1E5F1}-\\x{1E5FA}"
constexpr const char* kPattern =
    "'s|'t|'re|'ve|'m|'ll|'d| ?[" LETTERS "]+| ?[" NUMBERS "]+| ?[^" WHITE_SPACE LETTERS NUMBERS
    "]+|[" WHITE_SPACE "]+(?![^" WHITE_SPACE "])|[" WHITE_SPACE "]+";
#undef NUMBERS
#undef LETTERS
#undef WHITE_SPACE

/// The pattern's classes of ASCII characters; `unknown` bytes need PCRE2.
enum class Kind : std::uint8_t { letter, number, space, symbol, unknown };

constexpr std::array<Kind, 256> kKinds = [] {
  std::array<Kind, 256> kinds{};
  for (int c = 0; c < 256; ++c) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    const bool space = c == ' ' || (c >= '\t' && c <= '\r');
    kinds[static_cast<std::size_t>(c)] = c >= 0x80              ? Kind::unknown
                                         : letter               ? Kind::letter
                                         : c >= '0' && c <= '9' ? Kind::number
                                         : space                ? Kind::space
                                                                : Kind::symbol;
  }
  return kinds;
}();

Kind kind_of(char c) { return kKinds[static_cast<std::uint8_t>(c)]; }

constexpr std::size_t kUndecided = std::string_view::npos;

/// Length of the contraction at the start of `text`, or 0.
std::size_t contraction_length(std::string_view text) {
  if (text.size() < 2 || text[0] != '\'') return 0;
  if (text[1] == 's' || text[1] == 't' || text[1] == 'm' || text[1] == 'd') return 2;
  const std::string_view two = text.substr(1, 2);
  return two == "re" || two == "ve" || two == "ll" ? 3 : 0;
}

/// The pattern for ASCII; kUndecided when the end depends on a non-ASCII character.
std::size_t end_of_ascii_word(std::string_view text, std::size_t begin) {
  if (const std::size_t length = contraction_length(text.substr(begin))) return begin + length;

  std::size_t end = begin;
  if (text[begin] == ' ' && begin + 1 < text.size() && kind_of(text[begin + 1]) != Kind::space)
    ++end;
  const Kind kind = kind_of(text[end]);
  if (kind == Kind::unknown) return kUndecided;
  while (end < text.size() && kind_of(text[end]) == kind) ++end;
  if (end == text.size()) return end;
  if (kind_of(text[end]) == Kind::unknown) return kUndecided;
  // The last white space before a word belongs to that word.
  if (kind == Kind::space && end - begin > 1) return end - 1;
  return end;
}

class Gpt2Tokenizer : public Tokenizer {
 public:
  Gpt2Tokenizer(const std::filesystem::path& vocab, const std::filesystem::path& merges)
      : Gpt2Tokenizer(Vocabulary(vocab), merges) {}

  std::string_view name() const override { return "gpt2"; }
  std::int32_t vocab_size() const override { return static_cast<std::int32_t>(bytes_.size()); }
  std::optional<std::int32_t> eod() const override { return eod_; }
  std::uint64_t hash() const override { return hash_.value(); }

  std::vector<std::int32_t> encode(std::string_view text) const override {
    if (text.size() > std::numeric_limits<std::int32_t>::max())
      throw DataError("a document of {} bytes is too long: the limit is 2 GiB", text.size());
    if (valid_utf8_prefix(text) != text.size()) return encode_valid(replace_invalid_utf8(text));
    return encode_valid(text);
  }

  std::string decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    for (const std::int32_t id : ids) {
      check_id(name(), id, vocab_size());
      text += bytes_[static_cast<std::size_t>(id)];
    }
    return text;
  }

 private:
  /// State of one encoding thread.
  struct Workspace {
    Gpt2Words words;
    WordCache cache;
  };

  Gpt2Tokenizer(const Vocabulary& vocabulary, const std::filesystem::path& merges)
      : encoder_(vocabulary, merges), eod_(vocabulary.find(kEndOfText)) {
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

  std::vector<std::int32_t> encode_valid(std::string_view text) const {
    std::unique_ptr<Workspace> workspace = take_workspace();
    std::vector<std::int32_t> ids;
    ids.reserve(text.size() / 4);  // English has somewhat more than four bytes a token
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = workspace->words.end_of_word(text, begin);
      workspace->cache.encode(encoder_, text.substr(begin, end - begin), ids);
      begin = end;
    }
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(workspace));
    return ids;
  }

  std::unique_ptr<Workspace> take_workspace() const {
    {
      const std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        std::unique_ptr<Workspace> workspace = std::move(idle_.back());
        idle_.pop_back();
        return workspace;
      }
    }
    return std::make_unique<Workspace>();
  }

  BytePairEncoder encoder_;
  std::vector<std::string> bytes_;
  std::optional<std::int32_t> eod_;
  ContentHash hash_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Workspace>> idle_;
};

}  // namespace

void Gpt2Words::Free::operator()(pcre2_code* code) const { pcre2_code_free(code); }
void Gpt2Words::Free::operator()(pcre2_match_data* match) const { pcre2_match_data_free(match); }

Gpt2Words::Gpt2Words() {
  int error = 0;
  PCRE2_SIZE offset = 0;
  code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(kPattern), PCRE2_ZERO_TERMINATED,
                            PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &error, &offset, nullptr));
  TRIREME_CHECK(code_, "PCRE2 error {} at {} of the GPT-2 pattern", error, offset);
  // Without JIT support the interpreter matches the same, slower.
  pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE);
  match_.reset(pcre2_match_data_create_from_pattern(code_.get(), nullptr));
  if (!match_) throw std::bad_alloc();
}

std::size_t Gpt2Words::end_of_word(std::string_view text, std::size_t begin) {
  const std::size_t end = end_of_ascii_word(text, begin);
  return end != kUndecided ? end : end_of_word_by_pattern(text, begin);
}

std::size_t Gpt2Words::end_of_word_by_pattern(std::string_view text, std::size_t begin) {
  const int matched = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()),
                                  text.size(), begin, PCRE2_NO_UTF_CHECK, match_.get(), nullptr);
  TRIREME_CHECK(matched > 0, "PCRE2 error {} at byte {} of {}", matched, begin, text.size());
  return pcre2_get_ovector_pointer(match_.get())[1];
}

std::unique_ptr<Tokenizer> make_gpt2_tokenizer(const std::filesystem::path& vocab,
                                               const std::filesystem::path& merges) {
  return std::make_unique<Gpt2Tokenizer>(vocab, merges);
}

}  // namespace trireme::tokenizer
