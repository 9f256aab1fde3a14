#include "tokenizer/kinds.hpp"

#include <unicode/locid.h>
#include <unicode/normalizer2.h>
#include <unicode/stringpiece.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "core/error.hpp"
#include "core/files.hpp"
#include "tokenizer/tokenizer.hpp"

namespace trireme::tokenizer {
namespace {

constexpr std::uint8_t kUnicodeMajor = 15, kUnicodeMinor = 0;

bool is_ascii_punctuation(char32_t c) {
  return (c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) ||
         (c >= 123 && c <= 126);
}

bool is_punctuation(char32_t c) {
  return c < 0x80 ? is_ascii_punctuation(c) : u_ispunct(static_cast<UChar32>(c)) != 0;
}

/// The blocks that tokenization.py calls Chinese characters; kana and Hangul are not among them.
bool is_cjk(char32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) ||
         (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2B73F) ||
         (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B820 && c <= 0x2CEAF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

/// The part of a character in splitting text at white space.
enum class Role { dropped, separator, ideograph, part };

Role role_of_ascii(char32_t c) {
  if (c == ' ' || c == '\t' || c == '\n' || c == '\r') return Role::separator;
  return c < 0x20 || c == 0x7F ? Role::dropped : Role::part;
}

Role role_of(char32_t c) {
  if (c < 0x80) return role_of_ascii(c);
  if (c == kReplacement) return Role::dropped;
  UVersionInfo age;
  u_charAge(static_cast<UChar32>(c), age);
  if (std::pair(age[0], age[1]) > std::pair(kUnicodeMajor, kUnicodeMinor)) return Role::dropped;
  switch (u_charType(static_cast<UChar32>(c))) {
    case U_SPACE_SEPARATOR:
    case U_LINE_SEPARATOR:
    case U_PARAGRAPH_SEPARATOR:
      return Role::separator;
    case U_CONTROL_CHAR:
    case U_FORMAT_CHAR:
    case U_PRIVATE_USE_CHAR:
    case U_SURROGATE:
    case U_UNASSIGNED:
      return Role::dropped;
    default:
      return is_cjk(c) ? Role::ideograph : Role::part;
  }
}

/// `text` in lower case, decomposed, without combining marks.
std::string lower_without_accents(std::string_view text) {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* nfd = icu::Normalizer2::getNFDInstance(status);
  TRIREME_CHECK(U_SUCCESS(status), "ICU has no NFD data: {}", u_errorName(status));
  icu::UnicodeString lower = icu::UnicodeString::fromUTF8(
      icu::StringPiece(text.data(), static_cast<std::int32_t>(text.size())));
  lower.toLower(icu::Locale::getRoot());
  const icu::UnicodeString decomposed = nfd->normalize(lower, status);
  TRIREME_CHECK(U_SUCCESS(status), "NFD of '{}': {}", text, u_errorName(status));
  std::string result;
  for (std::int32_t at = 0; at < decomposed.length(); at = decomposed.moveIndex32(at, 1)) {
    const UChar32 c = decomposed.char32At(at);
    if (u_charType(c) != U_NON_SPACING_MARK) append_utf8(result, static_cast<char32_t>(c));
  }
  return result;
}

/// Calls `take` with the parts of `word` between punctuation marks, and with each mark.
void split_at_punctuation(std::string_view word,
                          const std::function<void(std::string_view)>& take) {
  std::size_t begin = 0;
  for (std::size_t at = 0; at < word.size();) {
    const Utf8Step step = read_utf8(word, at);
    if (is_punctuation(step.code_point)) {
      if (at > begin) take(word.substr(begin, at - begin));
      take(word.substr(at, step.length));
      begin = at + step.length;
    }
    at += step.length;
  }
  if (begin < word.size()) take(word.substr(begin));
}

/// Pieces of one kind (at the start of words, or after it) and their ids.
class Pieces {
 public:
  void add(std::string_view piece, std::int32_t id) {
    ids_.emplace(piece, id);
    longest_ = std::max(longest_, piece.size());
  }
  /// The id of `piece`, or -1.
  std::int32_t find(std::string_view piece) const {
    if (piece.size() > longest_) return -1;
    const auto found = ids_.find(piece);
    return found == ids_.end() ? -1 : found->second;
  }

 private:
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  std::unordered_map<std::string, std::int32_t, Hash, std::equal_to<>> ids_;
  std::size_t longest_ = 0;  ///< bytes
};

class WordPieceTokenizer : public Tokenizer {
 public:
  WordPieceTokenizer(const std::filesystem::path& vocab, bool lowercase)
      : vocabulary_(vocab, Vocabulary::Format::lines),
        lowercase_(lowercase),
        unknown_(required("[UNK]")),
        bert_{required("[CLS]"), required("[SEP]"), required("[MASK]"), required("[PAD]")} {
    for (std::int32_t id = 0; id < vocabulary_.size(); ++id) {
      const std::string_view piece = vocabulary_.token(id);
      if (piece.starts_with(kContinues))
        continuations_.add(piece.substr(kContinues.size()), id);
      else
        beginnings_.add(piece, id);
    }
  }

  std::string_view name() const override { return "wordpiece"; }
  std::int32_t vocab_size() const override { return vocabulary_.size(); }
  std::optional<std::int32_t> eod() const override { return vocabulary_.find("[EOS]"); }
  std::optional<BertTokens> bert_tokens() const override { return bert_; }
  bool continues_word(std::int32_t id) const override {
    check_id(name(), id, vocab_size());
    return vocabulary_.token(id).starts_with(kContinues);
  }
  std::uint64_t hash() const override {
    ContentHash hash;
    const std::uint64_t vocabulary = vocabulary_.hash();
    hash.add(&vocabulary, sizeof vocabulary);
    hash.add(lowercase_ ? "lowercase" : "cased");
    return hash.value();
  }

  std::vector<std::int32_t> encode(std::string_view text) const override {
    if (text.size() > std::numeric_limits<std::int32_t>::max())
      throw DataError("a document of {} bytes is too long: the limit is 2 GiB", text.size());
    std::vector<std::int32_t> ids;
    ids.reserve(text.size() / 4);
    for_each_bert_word(text, lowercase_, [&](std::string_view word) { encode_word(word, ids); });
    return ids;
  }

  std::string decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    for (const std::int32_t id : ids) {
      check_id(name(), id, vocab_size());
      std::string_view piece = vocabulary_.token(id);
      if (!text.empty() && piece.starts_with(kContinues))
        piece.remove_prefix(kContinues.size());
      else if (!text.empty())
        text.push_back(' ');
      text += piece;
    }
    return text;
  }

 private:
  std::int32_t required(std::string_view token) const {
    const auto id = vocabulary_.find(token);
    if (!id)
      throw DataError("{}: a wordpiece vocabulary needs the token '{}'",
                      vocabulary_.path().string(), token);
    return *id;
  }

  /// Appends the ids of `word`: the longest piece first; [UNK] when a part has no piece.
  void encode_word(std::string_view word, std::vector<std::int32_t>& ids) const {
    std::array<std::size_t, kMaxWordCharacters + 1> ends{};  // of characters; ends[0] = 0
    std::size_t count = 0;
    for (std::size_t at = 0; at < word.size(); ends[++count] = at) {
      if (count == kMaxWordCharacters) return ids.push_back(unknown_);
      at += read_utf8(word, at).length;
    }
    const std::size_t before = ids.size();
    for (std::size_t begin = 0; begin < count;) {
      const Pieces& pieces = begin == 0 ? beginnings_ : continuations_;
      std::size_t end = count;
      std::int32_t id = -1;
      for (; end > begin && id < 0; --end)
        id = pieces.find(word.substr(ends[begin], ends[end] - ends[begin]));
      if (id < 0) {
        ids.resize(before);
        return ids.push_back(unknown_);
      }
      ids.push_back(id);
      begin = end + 1;
    }
  }

  Vocabulary vocabulary_;
  bool lowercase_;
  std::int32_t unknown_;
  BertTokens bert_;
  Pieces beginnings_, continuations_;
};

}  // namespace

void for_each_bert_word(std::string_view text, bool lowercase,
                        const std::function<void(std::string_view)>& take) {
  std::string word;
  bool ascii = true;
  const auto end_word = [&] {
    if (!word.empty())
      split_at_punctuation(lowercase && !ascii ? lower_without_accents(word) : word, take);
    word.clear();
    ascii = true;
  };
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Step step = read_utf8(text, at);
    const Role role = role_of(step.code_point);
    if (role == Role::separator || role == Role::ideograph) end_word();
    if (role == Role::part || role == Role::ideograph) {
      const bool upper = lowercase && text[at] >= 'A' && text[at] <= 'Z';
      if (upper)
        word.push_back(static_cast<char>(text[at] + ('a' - 'A')));
      else
        word.append(text.substr(at, step.length));
      ascii = ascii && step.code_point < 0x80;
    }
    if (role == Role::ideograph) end_word();
    at += step.length;
  }
  end_word();
}

std::unique_ptr<Tokenizer> make_wordpiece_tokenizer(const std::filesystem::path& vocab,
                                                    bool lowercase) {
  return std::make_unique<WordPieceTokenizer>(vocab, lowercase);
}

}  // namespace trireme::tokenizer
