#include "tokenizer/tokenizer.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "core/error.hpp"
#include "core/files.hpp"
#include "core/text.hpp"
#include "tokenizer/bpe/bpe.hpp"
#include "tokenizer/kinds.hpp"

namespace trireme::tokenizer {
namespace {

/// Bytes as ids 0 to 255, any bytes; 256 is eod and decodes to nothing.
class BytesTokenizer : public Tokenizer {
 public:
  std::string_view name() const override { return "bytes"; }
  std::int32_t vocab_size() const override { return 257; }
  std::optional<std::int32_t> eod() const override { return 256; }
  std::uint64_t hash() const override { return ContentHash().value(); }  // it has no files

  std::vector<std::int32_t> encode(std::string_view text) const override {
    const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
    return {bytes, bytes + text.size()};
  }

  std::string decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    for (const std::int32_t id : ids) {
      check_id(name(), id, vocab_size());
      if (id < 256) text.push_back(static_cast<char>(id));
    }
    return text;
  }
};

/// The separators of Python's str.split(): White_Space and the four information separators.
bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

/// Words between white space, looked up whole; words outside the vocabulary become <unk>. The
/// vocabulary must have <unk> and <|endoftext|>, which is eod. Decoding puts one blank between
/// words.
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

/// Checks one file of the spec: given where `needed`, else absent.
void check_file(const TokenizerSpec& spec, const char* option, const std::filesystem::path& path,
                bool needed) {
  if (needed && path.empty())
    throw UsageError("the {} tokenizer needs --{} FILE{}", spec.type, option,
                     spec.type == "gpt2" && !spec.vocab.empty()
                         ? "; a vocabulary of whole words, without merges, belongs to the "
                           "whitespace tokenizer"
                     : spec.type == "encdec" && std::string_view(option) == "model"
                         ? ": the folder of the Python package jieba (Debian: python3-jieba)"
                         : "");
  if (!needed && !path.empty())
    throw UsageError("the {} tokenizer has no use for --{} {}", spec.type, option, path.string());
}

void check_files(const TokenizerSpec& spec, bool vocab, bool merges, bool model) {
  check_file(spec, "vocab", spec.vocab, vocab);
  check_file(spec, "merges", spec.merges, merges);
  check_file(spec, "model", spec.model, model);
  const bool wordpiece = spec.type == "wordpiece";
  if (wordpiece && !spec.lowercase)
    throw UsageError(
        "the wordpiece tokenizer needs --lowercase: true for a vocabulary without capitals "
        "(uncased), else false");
  if (!wordpiece && spec.lowercase)
    throw UsageError("the {} tokenizer has no use for --lowercase", spec.type);
}

}  // namespace

std::string to_text(const TokenizerIdentity& identity) {
  return fmt::format("{} of {} ids (hash {:016x})", identity.type, identity.vocab_size,
                     identity.hash);
}

std::unique_ptr<Tokenizer> make_tokenizer(const TokenizerSpec& spec) {
  if (spec.type == "gpt2") {
    check_files(spec, true, true, false);
    return make_gpt2_tokenizer(spec.vocab, spec.merges);
  }
  if (spec.type == "bpe") {
    check_files(spec, false, false, true);
    return make_bpe_tokenizer(spec.model);
  }
  if (spec.type == "sentencepiece") {
    check_files(spec, false, false, true);
    return make_sentencepiece_tokenizer(spec.model);
  }
  if (spec.type == "whitespace") {
    check_files(spec, true, false, false);
    return std::make_unique<WhitespaceTokenizer>(spec.vocab);
  }
  if (spec.type == "bytes") {
    check_files(spec, false, false, false);
    return std::make_unique<BytesTokenizer>();
  }
  if (spec.type == "wordpiece") {
    check_files(spec, true, false, false);
    return make_wordpiece_tokenizer(spec.vocab, *spec.lowercase);
  }
  if (spec.type == "encdec") {
    check_files(spec, true, false, true);
    return make_encdec_tokenizer(spec.vocab, spec.model);
  }
  throw UsageError(
      "unknown tokenizer '{}': expected gpt2, bpe (tokenizer.json), sentencepiece, wordpiece, "
      "encdec, "
      "whitespace or bytes{}",
      spec.type,
      did_you_mean(spec.type,
                   {"gpt2", "bpe", "sentencepiece", "wordpiece", "encdec", "whitespace", "bytes"}));
}

Vocabulary::Vocabulary(const std::filesystem::path& path, Format format) : path_(path) {
  const std::string content = read_regular_file(path);
  if (format == Format::json)
    read_json(content);
  else
    read_lines(content);
}

void Vocabulary::read_lines(std::string_view content) {
  if (content.starts_with('{'))
    throw DataError("{}: this is JSON; expected a vocab.txt with a token per line", path_.string());
  while (!content.empty()) {
    std::string_view line = content.substr(0, content.find('\n'));
    content.remove_prefix(std::min(content.size(), line.size() + 1));
    if (line.ends_with('\r')) line.remove_suffix(1);
    const auto [first, fresh] = ids_.emplace(line, size());
    if (!fresh)
      throw DataError("{}:{}: token '{}' is also in line {}", path_.string(), size() + 1, line,
                      first->second + 1);
    tokens_.emplace_back(line);
  }
  if (tokens_.empty()) throw DataError("{}: the vocabulary is empty", path_.string());
}

void Vocabulary::read_json(const std::string& content) {
  const nlohmann::json json = nlohmann::json::parse(content, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object())
    throw DataError("{}: not a vocabulary: expected one JSON object {{\"token\": id, ...}}",
                    path_.string());
  const auto model = json.find("model");
  if (model != json.end() && model->is_object())
    throw DataError(
        "{}: this is Hugging Face's tokenizer.json, which has more than a vocabulary; give it as "
        "model to the type bpe, or the "
        "vocab.json (and for gpt2 the merges.txt) of the same model",
        path_.string());
  if (json.empty()) throw DataError("{}: the vocabulary is empty", path_.string());
  tokens_.resize(json.size());
  std::vector<bool> seen(json.size());
  for (const auto& [token, id] : json.items()) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= json.size())
      throw DataError("{}: the id of '{}' is {}; expected the whole numbers 0 to {}, each once",
                      path_.string(), token, id.dump(), json.size() - 1);
    const auto index = id.get<std::size_t>();
    if (seen[index])
      throw DataError("{}: '{}' and '{}' have the same id {}", path_.string(), tokens_[index],
                      token, index);
    seen[index] = true;
    tokens_[index] = token;
    ids_.emplace(token, static_cast<std::int32_t>(index));
  }
}

std::optional<std::int32_t> Vocabulary::find(std::string_view token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

std::uint64_t Vocabulary::hash() const {
  ContentHash hash;
  for (const std::string& token : tokens_) hash.add(token);
  return hash.value();
}

void check_id(std::string_view tokenizer, std::int32_t id, std::int32_t vocab_size) {
  if (id < 0 || id >= vocab_size)
    throw DataError("{} tokenizer: there is no id {}; the vocabulary has ids 0 to {}", tokenizer,
                    id, vocab_size - 1);
}

// ---- UTF-8

namespace {

/// The character after a lead byte: its length in bytes (0: not a lead byte), and the range of its
/// second byte, which excludes overlong forms, surrogates and code points past U+10FFFF (Unicode,
/// table 3-7).
struct Lead {
  std::uint8_t length, second_low, second_high;
};

Lead classify(std::uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

Utf8Step read_utf8(std::string_view text, std::size_t position) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[position + i]); };
  const Lead lead = classify(byte(0));
  if (lead.length == 1) return {1, true, byte(0)};
  if (lead.length == 0) return {1, false, kReplacement};
  char32_t code_point = byte(0) & (0x7Fu >> lead.length);
  for (std::size_t i = 1; i < lead.length; ++i) {
    const std::uint8_t low = i == 1 ? lead.second_low : 0x80;
    const std::uint8_t high = i == 1 ? lead.second_high : 0xBF;
    if (position + i >= text.size() || byte(i) < low || byte(i) > high)
      return {i, false, kReplacement};
    code_point = code_point << 6 | (byte(i) & 0x3Fu);
  }
  return {lead.length, true, code_point};
}

std::size_t valid_utf8_prefix(std::string_view text) {
  std::size_t position = 0;
  while (position < text.size()) {
    std::uint64_t eight = 0;
    while (position + sizeof eight <= text.size()) {
      std::memcpy(&eight, text.data() + position, sizeof eight);
      if (eight & 0x8080808080808080u) break;
      position += sizeof eight;
    }
    if (position == text.size()) break;
    const Utf8Step step = read_utf8(text, position);
    if (!step.valid) return position;
    position += step.length;
  }
  return position;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string repaired;
  repaired.reserve(text.size());
  while (!text.empty()) {
    const std::size_t valid = valid_utf8_prefix(text);
    repaired.append(text.substr(0, valid));
    text.remove_prefix(valid);
    if (text.empty()) break;
    append_utf8(repaired, kReplacement);
    text.remove_prefix(read_utf8(text, 0).length);
  }
  return repaired;
}

void append_utf8(std::string& text, char32_t code_point) {
  const auto append = [&](char32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    append(code_point);
    return;
  }
  if (code_point < 0x800) {
    append(0xC0 | code_point >> 6);
  } else {
    if (code_point < 0x10000) {
      append(0xE0 | code_point >> 12);
    } else {
      append(0xF0 | code_point >> 18);
      append(0x80 | (code_point >> 12 & 0x3F));
    }
    append(0x80 | (code_point >> 6 & 0x3F));
  }
  append(0x80 | (code_point & 0x3F));
}

}  // namespace trireme::tokenizer
