#include "core/error.hpp"
#include "tokenizer/implementations.hpp"
#include "tokenizer/utf8.hpp"
#include "tokenizer/vocabulary.hpp"

namespace trireme::tokenizer {
namespace {

/// What Python's str.split() splits at: White_Space and the four information separators.
bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

class WhitespaceTokenizer : public Tokenizer {
 public:
  explicit WhitespaceTokenizer(const std::filesystem::path& vocab) : vocabulary_(vocab) {
    const auto required = [&](std::string_view token) {
      const auto id = vocabulary_.find(token);
      if (!id)
        throw DataError("{}: a whitespace vocabulary needs the token '{}'", vocab.string(), token);
      return *id;
    };
    unknown_ = required("<unk>");
    eod_ = required(kEndOfText);
  }

  std::string_view name() const override { return "whitespace"; }
  std::int32_t vocab_size() const override { return vocabulary_.size(); }
  std::optional<std::int32_t> eod() const override { return eod_; }
  std::uint64_t hash() const override { return vocabulary_.hash(); }

  std::vector<std::int32_t> encode(std::string_view text) const override {
    const std::string repaired = replace_invalid_utf8(text);
    const std::string_view valid = repaired;
    std::vector<std::int32_t> ids;
    std::size_t begin = 0;
    const auto end_word = [&](std::size_t end) {
      if (end > begin)
        ids.push_back(vocabulary_.find(valid.substr(begin, end - begin)).value_or(unknown_));
    };
    for (std::size_t position = 0; position < valid.size();) {
      const Utf8Step step = read_utf8(valid, position);
      if (is_white_space(step.code_point)) {
        end_word(position);
        begin = position + step.length;
      }
      position += step.length;
    }
    end_word(valid.size());
    return ids;
  }

  std::string decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    for (const std::int32_t id : ids) {
      check_id(name(), id, vocab_size());
      if (!text.empty()) text.push_back(' ');
      text += vocabulary_.token(id);
    }
    return text;
  }

 private:
  Vocabulary vocabulary_;
  std::int32_t unknown_ = 0;
  std::int32_t eod_ = 0;
};

}  // namespace

std::unique_ptr<Tokenizer> make_whitespace_tokenizer(const std::filesystem::path& vocab) {
  return std::make_unique<WhitespaceTokenizer>(vocab);
}

}  // namespace trireme::tokenizer
