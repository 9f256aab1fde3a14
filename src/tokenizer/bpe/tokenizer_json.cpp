#include "tokenizer/bpe/bpe.hpp"

#include <unicode/bytestream.h>
#include <unicode/stringpiece.h>
#include <unicode/uchar.h>

#include <algorithm>
#include <functional>

#include "core/files.hpp"
#include "tokenizer/kinds.hpp"
#include "tokenizer/tokenizer.hpp"

namespace trireme::tokenizer {

using nlohmann::json;

// ---- the file

JsonFile::JsonFile(const std::filesystem::path& path)
    : path_(path.string()),
      root_(json::parse(read_regular_file(path), nullptr, /*allow_exceptions=*/false)) {
  if (!root_.is_object() || !root_.contains("model") || !root_["model"].is_object())
    fail("it is no tokenizer.json: expected a JSON object with a \"model\"");
}

const json& JsonFile::member(const json& object, const char* key) {
  static const json null;
  const auto found = object.find(key);
  return found == object.end() ? null : *found;
}

bool JsonFile::flag(const json& object, const char* key, bool fallback) const {
  const json& value = member(object, key);
  if (value.is_null()) return fallback;
  if (!value.is_boolean()) fail("\"{}\" is {}; expected true or false", key, value.dump());
  return value.get<bool>();
}

std::string JsonFile::text(const json& object, const char* key) const {
  const json& value = member(object, key);
  if (!value.is_string()) fail("\"{}\" is {}; expected a string", key, value.dump());
  return value.get<std::string>();
}

std::int32_t JsonFile::id(const json& value, const std::string& token) const {
  constexpr std::int64_t kMaxId = 1 << 24;  // bounds the memory that a damaged file asks for
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > kMaxId)
    fail("the id of '{}' is {}; expected a whole number up to {}", token, value.dump(), kMaxId);
  return value.get<std::int32_t>();
}

const json& JsonFile::list(const json& object, const char* key) const {
  const json& value = member(object, key);
  if (!value.is_array()) fail("\"{}\" is missing or no list", key);
  return value;
}

// ---- added tokens

namespace {

/// \w and \s of the library's regular expressions.
bool is_word_character(char32_t c) {
  const auto code_point = static_cast<UChar32>(c);
  return u_hasBinaryProperty(code_point, UCHAR_ALPHABETIC) != 0 ||
         u_hasBinaryProperty(code_point, UCHAR_JOIN_CONTROL) != 0 ||
         (U_GET_GC_MASK(code_point) & (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) != 0;
}
bool is_regex_space(char32_t c) { return u_isUWhiteSpace(static_cast<UChar32>(c)) != 0; }

/// The start of the character that ends at `end`, in valid UTF-8.
std::size_t before(std::string_view text, std::size_t end) {
  do --end;
  while (end > 0 && (static_cast<std::uint8_t>(text[end]) & 0xC0) == 0x80);
  return end;
}

/// Whether the characters next to [start, stop) are no word characters.
bool is_apart(std::string_view text, std::size_t start, std::size_t stop) {
  const bool left = start > 0 && is_word_character(read_utf8(text, before(text, start)).code_point);
  const bool right = stop < text.size() && is_word_character(read_utf8(text, stop).code_point);
  return !left && !right;
}

}  // namespace

void AddedTokens::add(AddedToken token) {
  if (!token.content.empty())
    by_first_byte_[static_cast<std::uint8_t>(token.content[0])].push_back(std::move(token));
}

void AddedTokens::finish() {
  for (auto& tokens : by_first_byte_)
    std::ranges::stable_sort(tokens, std::greater<>(),
                             [](const AddedToken& token) { return token.content.size(); });
}

const AddedToken* AddedTokens::token_at(std::string_view text, std::size_t at) const {
  for (const AddedToken& token : by_first_byte_[static_cast<std::uint8_t>(text[at])])
    if (text.substr(at, token.content.size()) == token.content) return &token;
  return nullptr;
}

bool AddedTokens::find(std::string_view text, std::size_t begin, Match& match) const {
  for (std::size_t at = begin; at < text.size();) {
    const AddedToken* token = token_at(text, at);
    if (!token) {
      ++at;
      continue;
    }
    std::size_t start = at, stop = at + token->content.size();
    at = stop;
    if (token->single_word && !is_apart(text, start, stop)) continue;
    if (token->lstrip)
      while (start > begin && is_regex_space(read_utf8(text, before(text, start)).code_point))
        start = before(text, start);
    if (token->rstrip)
      for (Utf8Step step; stop < text.size(); stop += step.length)
        if (step = read_utf8(text, stop); !is_regex_space(step.code_point)) break;
    match = {start, stop, token->id};
    return true;
  }
  return false;
}

// ---- normalizers

bool is_ascii(std::string_view text) {
  return std::ranges::none_of(text, [](char c) { return static_cast<std::uint8_t>(c) >= 0x80; });
}

namespace {

std::string normalize(const icu::Normalizer2& normalizer, std::string_view text) {
  std::string result;
  result.reserve(text.size());
  icu::StringByteSink<std::string> sink(&result);
  UErrorCode status = U_ZERO_ERROR;
  normalizer.normalizeUTF8(0, icu::StringPiece(text.data(), static_cast<std::int32_t>(text.size())),
                           sink, nullptr, status);
  TRIREME_CHECK(U_SUCCESS(status), "normalization: {}", u_errorName(status));
  return result;
}

}  // namespace

Normalizers::Normalizers(const JsonFile& file) {
  read(file, JsonFile::member(file.root(), "normalizer"));
}

void Normalizers::read(const JsonFile& file, const json& value) {
  if (value.is_null()) return;
  if (!value.is_object()) file.fail("\"normalizer\" is no JSON object");
  const std::string type = file.text(value, "type");
  if (type == "Sequence") {
    for (const json& inner : file.list(value, "normalizers")) read(file, inner);
    return;
  }
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* normalizer = nullptr;
  if (type == "NFC") normalizer = icu::Normalizer2::getNFCInstance(status);
  if (type == "NFD") normalizer = icu::Normalizer2::getNFDInstance(status);
  if (type == "NFKC") normalizer = icu::Normalizer2::getNFKCInstance(status);
  if (type == "NFKD") normalizer = icu::Normalizer2::getNFKDInstance(status);
  TRIREME_CHECK(U_SUCCESS(status), "ICU has no {} data: {}", type, u_errorName(status));
  if (!normalizer)
    file.fail("the normalizer {} is not supported (NFC, NFD, NFKC and NFKD are)", type);
  forms_.push_back(normalizer);
}

std::string Normalizers::operator()(std::string text) const {
  for (const icu::Normalizer2* form : forms_) text = normalize(*form, text);
  return text;
}

std::string normalize_nfc(std::string_view text) {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* nfc = icu::Normalizer2::getNFCInstance(status);
  TRIREME_CHECK(U_SUCCESS(status), "ICU has no NFC data: {}", u_errorName(status));
  return is_ascii(text) ? std::string(text) : normalize(*nfc, text);
}

// ---- pre-tokenizers

PreTokenizer::PreTokenizer(const JsonFile& file) {
  if (!read(file, JsonFile::member(file.root(), "pre_tokenizer")))
    file.fail(
        "it is no byte-level BPE: its pre_tokenizer has no ByteLevel; give a SentencePiece "
        "model, tokenizer.model, to the type sentencepiece");
}

/// Appends the steps of a pre-tokenizer; returns whether ByteLevel is among them.
bool PreTokenizer::read(const JsonFile& file, const json& value) {
  if (value.is_null()) return false;
  if (!value.is_object()) file.fail("a pre_tokenizer is no JSON object");
  const std::string type = file.text(value, "type");
  const auto add_pattern = [&](std::string_view pattern) {
    try {
      steps_.push_back({Step::Kind::pattern, std::make_shared<const WordPattern>(pattern)});
    } catch (const DataError& error) {
      file.fail("{}", error.what());
    }
  };
  if (type == "Sequence") {
    bool found = false;
    for (const json& inner : file.list(value, "pretokenizers")) {
      if (found) file.fail("pre_tokenizer: ByteLevel is not the last of its sequence");
      found = read(file, inner);
    }
    return found;
  }
  if (type == "ByteLevel") {
    if (file.flag(value, "add_prefix_space", true)) steps_.push_back({Step::Kind::prefix});
    if (file.flag(value, "use_regex", true)) add_pattern(kGpt2Pattern);
    return true;
  }
  if (type == "Digits") {
    const bool single = file.flag(value, "individual_digits");
    steps_.push_back({single ? Step::Kind::digit : Step::Kind::digits});
    return false;
  }
  if (type != "Split")
    file.fail(
        "the pre_tokenizer {} is not supported (ByteLevel, Split, Digits and sequences of them "
        "are){}",
        type,
        type == "Metaspace" ? "; give its SentencePiece model, tokenizer.model, to the type "
                              "sentencepiece"
                            : "");
  const json& pattern = JsonFile::member(value, "pattern");
  if (!pattern.is_object() || !pattern.contains("Regex"))
    file.fail("the pre_tokenizer Split has no pattern {{\"Regex\": ...}}");
  if (file.text(value, "behavior") != "Isolated" || file.flag(value, "invert"))
    file.fail("the pre_tokenizer Split has another behavior than Isolated, or inverts its pattern");
  add_pattern(file.text(pattern, "Regex"));
  return false;
}

std::size_t PreTokenizer::end_of_part(const Step& step, std::string_view text, std::size_t begin) {
  if (step.kind == Step::Kind::pattern) return step.pattern->end_of_word(text, begin);
  const auto is_number = [&](const Utf8Step& character) {
    return (U_GET_GC_MASK(static_cast<UChar32>(character.code_point)) & U_GC_N_MASK) != 0;
  };
  const Utf8Step first = read_utf8(text, begin);
  std::size_t end = begin + first.length;
  if (is_number(first) && step.kind == Step::Kind::digit) return end;
  while (end < text.size()) {
    const Utf8Step next = read_utf8(text, end);
    if (is_number(next) != is_number(first)) break;
    end += next.length;
  }
  return end;
}

}  // namespace trireme::tokenizer
