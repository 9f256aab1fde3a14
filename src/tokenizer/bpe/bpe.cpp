#include "tokenizer/bpe/bpe.hpp"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/stringpiece.h>
#include <unicode/uchar.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/content_hash.hpp"
#include "core/error.hpp"
#include "core/files.hpp"
#include "tokenizer/bpe/gpt2.hpp"
#include "tokenizer/utf8.hpp"
#include "tokenizer/vocabulary.hpp"

namespace trireme::tokenizer {
namespace {

using nlohmann::json;
using Ids = std::vector<std::int32_t>;

// ---------------------------------------------------------------------------- added tokens

/// A token that is found in the text before it is split into words.
struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool single_word = false;  ///< not next to a letter, number or underscore
  bool lstrip = false;       ///< takes the white space before it
  bool rstrip = false;       ///< takes the white space after it
};

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

/// Added tokens that are searched in one pass, the leftmost first, the longest of those.
class AddedTokens {
 public:
  void add(AddedToken token) {
    if (!token.content.empty())
      by_first_byte_[static_cast<std::uint8_t>(token.content[0])].push_back(std::move(token));
  }
  void finish() {
    for (auto& tokens : by_first_byte_)
      std::ranges::stable_sort(tokens, std::greater<>(),
                               [](const AddedToken& token) { return token.content.size(); });
  }

  /// Calls `take` with the texts between the tokens; appends the tokens' ids.
  template <typename Take>
  void split(std::string_view text, Ids& ids, const Take& take) const {
    std::size_t begin = 0;
    for (std::size_t at = 0; at < text.size();) {
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
      if (start > begin) take(text.substr(begin, start - begin));
      ids.push_back(token->id);
      begin = stop;
      at = std::max(at, stop);
    }
    if (begin < text.size()) take(text.substr(begin));
  }

 private:
  const AddedToken* token_at(std::string_view text, std::size_t at) const {
    for (const AddedToken& token : by_first_byte_[static_cast<std::uint8_t>(text[at])])
      if (text.substr(at, token.content.size()) == token.content) return &token;
    return nullptr;
  }
  static bool is_apart(std::string_view text, std::size_t start, std::size_t stop) {
    const bool left =
        start > 0 && is_word_character(read_utf8(text, before(text, start)).code_point);
    const bool right = stop < text.size() && is_word_character(read_utf8(text, stop).code_point);
    return !left && !right;
  }

  std::array<std::vector<AddedToken>, 256> by_first_byte_;
};

// ---------------------------------------------------------------------------- the file

/// Reads values of a tokenizer.json; errors name the file.
class JsonFile {
 public:
  explicit JsonFile(const std::filesystem::path& path)
      : path_(path.string()),
        root_(json::parse(read_regular_file(path), nullptr, /*allow_exceptions=*/false)) {
    if (!root_.is_object() || !root_.contains("model") || !root_["model"].is_object())
      fail("it is no tokenizer.json: expected a JSON object with a \"model\"");
  }

  const json& root() const { return root_; }

  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> text, Args&&... args) const {
    throw DataError("{}: {}", path_, fmt::format(text, std::forward<Args>(args)...));
  }

  /// The member `key` of `object`; null if it is absent.
  static const json& member(const json& object, const char* key) {
    static const json null;
    const auto found = object.find(key);
    return found == object.end() ? null : *found;
  }
  bool flag(const json& object, const char* key, bool fallback = false) const {
    const json& value = member(object, key);
    if (value.is_null()) return fallback;
    if (!value.is_boolean()) fail("\"{}\" is {}; expected true or false", key, value.dump());
    return value.get<bool>();
  }
  std::string text(const json& object, const char* key) const {
    const json& value = member(object, key);
    if (!value.is_string()) fail("\"{}\" is {}; expected a string", key, value.dump());
    return value.get<std::string>();
  }
  std::int32_t id(const json& value, const std::string& token) const {
    constexpr std::int64_t kMaxId = 1 << 24;  // bounds the memory that a damaged file asks for
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > kMaxId)
      fail("the id of '{}' is {}; expected a whole number up to {}", token, value.dump(), kMaxId);
    return value.get<std::int32_t>();
  }
  /// The members of the list `key` of `object`.
  const json& list(const json& object, const char* key) const {
    const json& value = member(object, key);
    if (!value.is_array()) fail("\"{}\" is missing or no list", key);
    return value;
  }

 private:
  std::string path_;
  json root_;
};

/// One step of pre-tokenization.
struct Step {
  enum class Kind { pattern, digits, digit, prefix } kind;
  std::shared_ptr<const WordPattern> pattern = nullptr;
};

/// Appends the steps of a pre-tokenizer; returns whether ByteLevel is among them.
bool read_steps(const JsonFile& file, const json& value, std::vector<Step>& steps) {
  if (value.is_null()) return false;
  if (!value.is_object()) file.fail("a pre_tokenizer is no JSON object");
  const std::string type = file.text(value, "type");
  const auto add_pattern = [&](std::string_view pattern) {
    try {
      steps.push_back({Step::Kind::pattern, std::make_shared<const WordPattern>(pattern)});
    } catch (const DataError& error) {
      file.fail("{}", error.what());
    }
  };
  if (type == "Sequence") {
    bool found = false;
    for (const json& inner : file.list(value, "pretokenizers")) {
      if (found) file.fail("pre_tokenizer: ByteLevel is not the last of its sequence");
      found = read_steps(file, inner, steps);
    }
    return found;
  }
  if (type == "ByteLevel") {
    if (file.flag(value, "add_prefix_space", true)) steps.push_back({Step::Kind::prefix});
    if (file.flag(value, "use_regex", true)) add_pattern(kGpt2Pattern);
    return true;
  }
  if (type == "Digits") {
    const bool single = file.flag(value, "individual_digits");
    steps.push_back({single ? Step::Kind::digit : Step::Kind::digits});
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

/// Appends ICU's normalizers for those of the file.
void read_normalizers(const JsonFile& file, const json& value,
                      std::vector<const icu::Normalizer2*>& normalizers) {
  if (value.is_null()) return;
  if (!value.is_object()) file.fail("\"normalizer\" is no JSON object");
  const std::string type = file.text(value, "type");
  if (type == "Sequence") {
    for (const json& inner : file.list(value, "normalizers"))
      read_normalizers(file, inner, normalizers);
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
  normalizers.push_back(normalizer);
}

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

bool is_ascii(std::string_view text) {
  return std::ranges::none_of(text, [](char c) { return static_cast<std::uint8_t>(c) >= 0x80; });
}

// ---------------------------------------------------------------------------- the tokenizer

class BpeTokenizer : public Tokenizer {
 public:
  explicit BpeTokenizer(const std::filesystem::path& path) {
    const JsonFile file(path);
    const json& model = file.root()["model"];
    check_model(file, model);
    read_vocabulary(file, model);
    read_normalizers(file, JsonFile::member(file.root(), "normalizer"), normalizers_);
    if (!read_steps(file, JsonFile::member(file.root(), "pre_tokenizer"), steps_))
      file.fail(
          "it is no byte-level BPE: its pre_tokenizer has no ByteLevel; give a SentencePiece "
          "model, tokenizer.model, to the type sentencepiece");
    read_merges(file, model);
    read_added_tokens(file);
    find_eod(path);
    hash_.add(JsonFile::member(file.root(), "normalizer").dump());
    hash_.add(JsonFile::member(file.root(), "pre_tokenizer").dump());
    hash_.add(JsonFile::member(file.root(), "added_tokens").dump());
    const std::uint64_t merges = encoder_->hash();
    hash_.add(&merges, sizeof merges);
    for (const std::string& bytes : bytes_) hash_.add(bytes);
  }

  std::string_view name() const override { return "bpe"; }
  std::int32_t vocab_size() const override { return static_cast<std::int32_t>(bytes_.size()); }
  std::optional<std::int32_t> eod() const override { return eod_; }
  std::uint64_t hash() const override { return hash_.value(); }

  Ids encode(std::string_view text) const override {
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
  static void check_model(const JsonFile& file, const json& model) {
    const json& type = JsonFile::member(model, "type");
    if (!type.is_null() && type != "BPE")
      file.fail("its model is {}; only byte-level BPE is read", type.dump());
    const auto is_set = [&](const char* key) {
      const json& value = JsonFile::member(model, key);
      return !value.is_null() && value != "" && value != 0.0 && value != false;
    };
    for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"})
      if (is_set(key))
        file.fail("\"{}\" of its model is {}: not supported", key, model[key].dump());
    if (is_set("byte_fallback"))
      file.fail(
          "its model has byte_fallback, which is SentencePiece's BPE; give its tokenizer.model to "
          "the type sentencepiece");
  }

  void read_vocabulary(const JsonFile& file, const json& model) {
    const json& vocab = JsonFile::member(model, "vocab");
    if (!vocab.is_object() || vocab.empty()) file.fail("its model has no vocabulary");
    for (const auto& [token, value] : vocab.items()) {
      const std::int32_t id = file.id(value, token);
      ids_.emplace(token, id);
      set_bytes(file, id, token, bytes_of_token(token).value_or(token));
    }
  }

  void set_bytes(const JsonFile& file, std::int32_t id, const std::string& token,
                 std::string bytes) {
    const auto index = static_cast<std::size_t>(id);
    if (index >= bytes_.size()) {
      bytes_.resize(index + 1);
      taken_.resize(index + 1);
    }
    if (taken_[index] && bytes_[index] != bytes)
      file.fail("'{}' has the id {} of another token", token, id);
    taken_[index] = true;
    bytes_[index] = std::move(bytes);
  }

  void read_merges(const JsonFile& file, const json& model) {
    std::vector<BytePairEncoder::Rule> rules;
    const auto id_of = [&](const std::string& token) {
      const auto found = ids_.find(token);
      if (found == ids_.end())
        file.fail("merge {}: its vocabulary has no token '{}'", rules.size(), token);
      return found->second;
    };
    for (const json& merge : file.list(model, "merges")) {
      std::string left, right;
      if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
        left = merge[0].get<std::string>();
        right = merge[1].get<std::string>();
      } else if (merge.is_string()) {
        const std::string text = merge.get<std::string>();
        if (text.starts_with("#version")) continue;
        const std::size_t blank = text.find(' ');
        if (blank == std::string::npos || text.find(' ', blank + 1) != std::string::npos)
          file.fail("merge {}: expected two tokens, got '{}'", rules.size(), text);
        left = text.substr(0, blank);
        right = text.substr(blank + 1);
      } else {
        file.fail("merge {}: expected two tokens, got {}", rules.size(), merge.dump());
      }
      rules.push_back({id_of(left), id_of(right), id_of(left + right)});
    }
    // A byte without a token becomes unk_token, or nothing.
    std::array<std::int32_t, 256> byte_ids{};
    const json& unknown = JsonFile::member(model, "unk_token");
    for (std::size_t byte = 0; byte < byte_ids.size(); ++byte) {
      const char c = static_cast<char>(byte);
      const auto found = ids_.find(token_of_bytes({&c, 1}));
      const bool falls_back = found == ids_.end() && unknown.is_string();
      if (falls_back && file.flag(model, "fuse_unk"))
        file.fail("its vocabulary has no token for byte {}, and fuse_unk: not supported", byte);
      byte_ids[byte] = falls_back            ? id_of(unknown.get<std::string>())
                       : found == ids_.end() ? -1
                                             : found->second;
    }
    std::unordered_map<std::string, std::int32_t> whole_words;
    if (file.flag(model, "ignore_merges"))
      for (const auto& [token, id] : ids_)
        if (auto bytes = bytes_of_token(token)) whole_words.emplace(std::move(*bytes), id);
    encoder_ = std::make_unique<BytePairEncoder>(byte_ids, rules, std::move(whole_words));
  }

  void read_added_tokens(const JsonFile& file) {
    const json& tokens = JsonFile::member(file.root(), "added_tokens");
    if (tokens.is_null()) return;
    for (const json& value : file.list(file.root(), "added_tokens")) {
      if (!value.is_object()) file.fail("an added token is no JSON object");
      AddedToken token{.content = file.text(value, "content"),
                       .single_word = file.flag(value, "single_word"),
                       .lstrip = file.flag(value, "lstrip"),
                       .rstrip = file.flag(value, "rstrip")};
      token.id = file.id(JsonFile::member(value, "id"), token.content);
      if (const auto found = ids_.find(token.content); found != ids_.end())
        token.id = found->second;  // the model's id counts
      else
        ids_.emplace(token.content, token.id);
      set_bytes(file, token.id, token.content, token.content);
      const bool normalized = file.flag(value, "normalized");
      if (normalized)
        for (const icu::Normalizer2* normalizer : normalizers_)
          token.content = normalize(*normalizer, token.content);
      (normalized ? normalized_tokens_ : raw_tokens_).add(std::move(token));
    }
    raw_tokens_.finish();
    normalized_tokens_.finish();
  }

  void find_eod(const std::filesystem::path& path) {
    const std::filesystem::path config = path.parent_path() / "tokenizer_config.json";
    if (std::filesystem::exists(config)) {
      const json root = json::parse(read_file(config), nullptr, /*allow_exceptions=*/false);
      const json& token = JsonFile::member(root, "eos_token");
      const json& content = token.is_object() ? JsonFile::member(token, "content") : token;
      if (content.is_string())
        if (const auto found = ids_.find(content.get<std::string>()); found != ids_.end())
          eod_ = found->second;
    }
    for (const char* token : {"<|endoftext|>", "<|end_of_text|>", "</s>"})
      if (const auto found = ids_.find(token); !eod_ && found != ids_.end()) eod_ = found->second;
  }

  Ids encode_valid(std::string_view text) const {
    WordCaches::Lease cache(caches_);
    Ids ids;
    ids.reserve(text.size() / 4);
    raw_tokens_.split(text, ids, [&](std::string_view raw) {
      std::string normalized;
      if (!normalizers_.empty() && !is_ascii(raw))
        for (const icu::Normalizer2* normalizer : normalizers_)
          raw = normalized = normalize(*normalizer, raw);
      normalized_tokens_.split(raw, ids,
                               [&](std::string_view part) { split(0, part, *cache, ids); });
    });
    return ids;
  }

  /// Applies the steps from `step` on to `text`, and encodes the words.
  void split(std::size_t step, std::string_view text, WordCache& cache, Ids& ids) const {
    if (text.empty()) return;
    if (step == steps_.size()) return cache.encode(*encoder_, text, ids);
    switch (steps_[step].kind) {
      case Step::Kind::prefix:
        if (text.starts_with(' ')) return split(step + 1, text, cache, ids);
        return split(step + 1, fmt::format(" {}", text), cache, ids);
      case Step::Kind::pattern:
        for (std::size_t begin = 0; begin < text.size();) {
          const std::size_t end = steps_[step].pattern->end_of_word(text, begin);
          split(step + 1, text.substr(begin, end - begin), cache, ids);
          begin = end;
        }
        return;
      case Step::Kind::digits:
      case Step::Kind::digit:
        return split_digits(step, text, cache, ids);
    }
  }

  void split_digits(std::size_t step, std::string_view text, WordCache& cache, Ids& ids) const {
    std::size_t begin = 0;
    bool numeric = false;  // the run that starts at `begin`
    for (std::size_t at = 0; at < text.size();) {
      const Utf8Step character = read_utf8(text, at);
      const bool number =
          (U_GET_GC_MASK(static_cast<UChar32>(character.code_point)) & U_GC_N_MASK) != 0;
      const bool cut = number != numeric || (number && steps_[step].kind == Step::Kind::digit);
      if (cut && at > begin) split(step + 1, text.substr(begin, at - begin), cache, ids);
      if (cut) begin = at;
      numeric = number;
      at += character.length;
    }
    split(step + 1, text.substr(begin), cache, ids);
  }

  std::unordered_map<std::string, std::int32_t> ids_;
  std::vector<std::string> bytes_;  ///< of each id; empty for ids without a token
  std::vector<bool> taken_;
  std::vector<const icu::Normalizer2*> normalizers_;
  std::vector<Step> steps_;
  std::unique_ptr<BytePairEncoder> encoder_;
  AddedTokens raw_tokens_, normalized_tokens_;
  std::optional<std::int32_t> eod_;
  ContentHash hash_;
  mutable WordCaches caches_;
};

}  // namespace

std::string normalize_nfc(std::string_view text) {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* nfc = icu::Normalizer2::getNFCInstance(status);
  TRIREME_CHECK(U_SUCCESS(status), "ICU has no NFC data: {}", u_errorName(status));
  return is_ascii(text) ? std::string(text) : normalize(*nfc, text);
}

std::unique_ptr<Tokenizer> make_bpe_tokenizer(const std::filesystem::path& json) {
  return std::make_unique<BpeTokenizer>(json);
}

}  // namespace trireme::tokenizer
