#include "tokenizer/kinds.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/files.hpp"
#include "tokenizer/tokenizer.hpp"
#include "tokenizer/utf8.hpp"

namespace trireme::tokenizer {
namespace {

using Text = std::u32string;
using TextView = std::u32string_view;

bool has_chinese(TextView text) {
  return std::ranges::any_of(text, [](char32_t c) { return c >= 0x4E00 && c <= 0x9FFF; });
}

constexpr char32_t kBlank = 0x2582, kLineBreak = 0x2583;
constexpr std::size_t kMaxCharacters = 200;

Vocabulary read_vocabulary(const std::filesystem::path& path) {
  const bool json = read_regular_file(path).starts_with('{');
  return Vocabulary(path, json ? Vocabulary::Format::json : Vocabulary::Format::lines);
}

class EncDecTokenizer : public Tokenizer {
 public:
  EncDecTokenizer(const std::filesystem::path& vocab, const std::filesystem::path& jieba)
      : vocabulary_(read_vocabulary(vocab)), jieba_(jieba) {
    const auto unknown = vocabulary_.find("<unk>");
    if (!unknown)
      throw DataError("{}: an encdec vocabulary needs the token '<unk>'", vocab.string());
    unknown_ = *unknown;
    blank_ = vocabulary_.find(encode_text(Text{kBlank})).value_or(-1);
    for (std::int32_t id = 0; id < vocabulary_.size(); ++id)
      chinese_.push_back(has_chinese(decode_text(vocabulary_.token(id))));
  }

  std::string_view name() const override { return "encdec"; }
  std::int32_t vocab_size() const override { return vocabulary_.size(); }
  std::optional<std::int32_t> eod() const override { return vocabulary_.find("<eod>"); }
  std::uint64_t hash() const override { return vocabulary_.hash(); }

  std::vector<std::int32_t> encode(std::string_view text) const override {
    std::vector<std::int32_t> ids;
    jieba_.cut(prepare(text), [&](TextView word) { add_pieces(word, ids); });
    std::vector<std::int32_t> kept;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const bool inside = i > 0 && i + 1 < ids.size();
      if (inside && ids[i] == blank_ && is_latin(ids[i - 1]) && is_latin(ids[i + 1])) continue;
      kept.push_back(ids[i]);
    }
    return kept;
  }

  std::string decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    std::int32_t before = -1;
    for (const std::int32_t id : ids) {
      check_id(name(), id, vocab_size());
      std::string_view piece = vocabulary_.token(id);
      const bool continues = piece.starts_with("##") && piece.size() > 2;
      if (continues)
        piece.remove_prefix(2);
      else if (before >= 0 && is_latin(before) && is_latin(id))
        text += ' ';
      for (const char32_t c : decode_text(piece))
        append_utf8(text, c == kBlank ? U' ' : c == kLineBreak ? U'\n' : c);
      before = id;
    }
    return text;
  }

 private:
  /// Whether blanks next to this piece vanish: it has no Chinese character and is no blank.
  bool is_latin(std::int32_t id) const {
    return id != blank_ && !chinese_[static_cast<std::size_t>(id)];
  }

  static Text prepare(std::string_view text) {
    Text result = decode_text(text);
    const auto strip = [&](TextView set) {
      const std::size_t begin = std::min(result.find_first_not_of(set), result.size());
      const std::size_t end = result.find_last_not_of(set);
      result = begin == result.size() ? Text() : result.substr(begin, end + 1 - begin);
    };
    strip(U" \t\n\r\v\f\u0085\u00A0\u2028\u2029\u3000");
    strip(U"<n>");
    Text lines;
    for (std::size_t at = 0; at < result.size(); ++at) {
      const bool line_break = TextView(result).substr(at, 3) == U"<n>";
      lines.push_back(line_break ? U'\n' : result[at]);
      at += line_break ? 2 : 0;
    }
    return lines;
  }

  void add_pieces(TextView word, std::vector<std::int32_t>& ids) const {
    if (word.size() > kMaxCharacters) return ids.push_back(unknown_);
    Text characters(word);
    for (char32_t& c : characters) c = c == U' ' ? kBlank : c == U'\n' ? kLineBreak : c;
    for (std::size_t at = 0; at < characters.size();) {
      std::size_t end = characters.size();
      std::optional<std::int32_t> id;
      for (; end > at && !id; --end) {
        const Text part = characters.substr(at, end - at);
        id = vocabulary_.find((at > 0 && !has_chinese(part) ? "##" : "") + encode_text(part));
      }
      ids.push_back(id.value_or(unknown_));
      at = id ? end + 1 : at + 1;
    }
  }

  Vocabulary vocabulary_;
  Jieba jieba_;
  std::int32_t unknown_ = 0;
  std::int32_t blank_ = -1;
  std::vector<bool> chinese_;  ///< by id
};

}  // namespace

std::unique_ptr<Tokenizer> make_encdec_tokenizer(const std::filesystem::path& vocab,
                                                 const std::filesystem::path& jieba) {
  return std::make_unique<EncDecTokenizer>(vocab, jieba);
}

}  // namespace trireme::tokenizer
