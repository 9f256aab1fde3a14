#include "tokenizer/bpe/bpe.hpp"

#include <algorithm>
#include <cstring>
#include <queue>

#include "core/error.hpp"
#include "core/files.hpp"
#include "tokenizer/kinds.hpp"
#include "tokenizer/tokenizer.hpp"

namespace trireme::tokenizer {
namespace {

/// The character that GPT-2's files write for each byte: the same in Latin-1 where that is visible,
/// otherwise the next of U+0100, U+0101, ... (bytes_to_unicode of OpenAI's encoder.py).
constexpr std::array<char32_t, 256> kByteCharacters = [] {
  std::array<char32_t, 256> characters{};
  char32_t next = 0x100;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool visible = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) ||
                         (byte >= 0xAE && byte <= 0xFF);
    characters[byte] = visible ? byte : next++;
  }
  return characters;
}();

std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint32_t>(right);
}

/// A symbol of the word that is being merged, in a doubly linked list that ends with -1.
struct Symbol {
  std::int32_t id, previous, next;
};

/// A queued merge; stale when one of its symbols has changed since.
struct Candidate {
  std::int32_t rank, position, left, right, merged;
  bool operator>(const Candidate& other) const {
    return rank != other.rank ? rank > other.rank : position > other.position;
  }
};

}  // namespace

BytePairEncoder::BytePairEncoder(const Vocabulary& vocabulary,
                                 const std::filesystem::path& merges) {
  for (std::size_t byte = 0; byte < 256; ++byte) {
    std::string character;
    append_utf8(character, kByteCharacters[byte]);
    const auto id = vocabulary.find(character);
    if (!id)
      throw DataError("{}: the vocabulary has no token '{}' for byte {}{}",
                      vocabulary.path().string(), character, byte,
                      vocabulary.find("<unk>")
                          ? "; with '<unk>' it looks like one of whole words, which belongs to the "
                            "whitespace tokenizer"
                          : "");
    byte_ids_[byte] = *id;
  }

  const std::string content = read_regular_file(merges);
  std::string_view rest = content;
  std::int32_t rank = 0;
  for (int number = 1; !rest.empty(); ++number) {
    std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || (number == 1 && line.starts_with("#version"))) continue;
    const std::size_t blank = line.find(' ');
    if (blank == std::string_view::npos || line.find(' ', blank + 1) != std::string_view::npos)
      throw DataError("{}:{}: expected two tokens, got '{}'", merges.string(), number,
                      replace_invalid_utf8(line));
    const std::string left(line.substr(0, blank)), right(line.substr(blank + 1));
    hash_.add(line);
    const auto id = [&](const std::string& token) {
      const auto found = vocabulary.find(token);
      if (!found)
        throw DataError(
            "{}:{}: token '{}' is not in the vocabulary; do the two files belong together?",
            merges.string(), number, replace_invalid_utf8(token));
      return *found;
    };
    // One after the other: of several that are missing every compiler names the same.
    const std::int32_t merged = id(left + right), first = id(left), second = id(right);
    merges_.emplace(pair_key(first, second), Merge{rank++, merged});
  }
}

BytePairEncoder::BytePairEncoder(const std::array<std::int32_t, 256>& byte_ids,
                                 const std::vector<Rule>& rules,
                                 std::unordered_map<std::string, std::int32_t> whole_words)
    : byte_ids_(byte_ids), whole_words_(std::move(whole_words)) {
  merges_.reserve(rules.size());
  std::int32_t rank = 0;
  for (const Rule& rule : rules) {
    merges_.insert_or_assign(pair_key(rule.left, rule.right), Merge{rank++, rule.merged});
    hash_.add(&rule, sizeof rule);
  }
  hash_.add(byte_ids_.data(), sizeof byte_ids_);
  const auto whole = static_cast<std::int64_t>(whole_words_.size());
  hash_.add(&whole, sizeof whole);
}

const BytePairEncoder::Merge* BytePairEncoder::find(std::int32_t left, std::int32_t right) const {
  const auto found = merges_.find(pair_key(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

void BytePairEncoder::encode(std::string_view word, std::vector<std::int32_t>& ids) const {
  if (!whole_words_.empty())
    if (const auto whole = whole_words_.find(std::string(word)); whole != whole_words_.end())
      return ids.push_back(whole->second);
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  for (const char byte : word) {
    const std::int32_t id = byte_ids_[static_cast<std::uint8_t>(byte)];
    if (id < 0) continue;
    const auto position = static_cast<std::int32_t>(symbols.size());
    symbols.push_back({id, position - 1, position + 1});
  }
  const auto length = static_cast<std::int32_t>(symbols.size());
  if (length == 0) return;
  symbols.back().next = -1;
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto at = [&](std::int32_t position) -> Symbol& {
    return symbols[static_cast<std::size_t>(position)];
  };
  const auto propose = [&](std::int32_t position) {
    if (position < 0 || at(position).next < 0) return;
    const std::int32_t left = at(position).id, right = at(at(position).next).id;
    if (const Merge* merge = find(left, right))
      queue.push({merge->rank, position, left, right, merge->id});
  };

  for (std::int32_t i = 0; i < length; ++i) propose(i);

  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = at(best.position);
    // A symbol merged away has id -1; one that grew has another id.
    if (left.id != best.left || left.next < 0 || at(left.next).id != best.right) continue;
    Symbol& right = at(left.next);
    left.id = best.merged;
    left.next = right.next;
    if (right.next >= 0) at(right.next).previous = best.position;
    right.id = -1;
    propose(left.previous);
    propose(best.position);
  }

  for (std::int32_t i = 0; i >= 0; i = at(i).next) ids.push_back(at(i).id);
}

void WordCache::encode(const BytePairEncoder& encoder, std::string_view word,
                       std::vector<std::int32_t>& ids) {
  if (word.size() > Entry{}.word.size()) return encoder.encode(word, ids);
  Entry& entry = entries_[std::hash<std::string_view>{}(word) % entries_.size()];
  if (entry.length == word.size() &&
      std::memcmp(entry.word.data(), word.data(), word.size()) == 0) {
    ids.insert(ids.end(), entry.ids.begin(), entry.ids.begin() + entry.count);
    return;
  }
  const std::size_t before = ids.size();
  encoder.encode(word, ids);
  const std::size_t count = ids.size() - before;
  if (count > entry.ids.size()) return;
  std::copy(word.begin(), word.end(), entry.word.begin());
  std::copy(ids.begin() + static_cast<std::ptrdiff_t>(before), ids.end(), entry.ids.begin());
  entry.length = static_cast<std::uint8_t>(word.size());
  entry.count = static_cast<std::uint8_t>(count);
}

std::unique_ptr<WordCache> WordCaches::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      std::unique_ptr<WordCache> cache = std::move(idle_.back());
      idle_.pop_back();
      return cache;
    }
  }
  return std::make_unique<WordCache>();
}

void WordCaches::give_back(std::unique_ptr<WordCache> cache) {
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(cache));
}

std::string token_of_bytes(std::string_view bytes) {
  std::string token;
  for (const char byte : bytes)
    append_utf8(token, kByteCharacters[static_cast<std::uint8_t>(byte)]);
  return token;
}

std::optional<std::string> bytes_of_token(std::string_view token) {
  static const auto bytes = [] {
    std::unordered_map<char32_t, char> map;
    for (std::size_t byte = 0; byte < 256; ++byte)
      map.emplace(kByteCharacters[byte], static_cast<char>(byte));
    return map;
  }();
  std::string result;
  for (std::size_t position = 0; position < token.size();) {
    const Utf8Step step = read_utf8(token, position);
    const auto found = bytes.find(step.code_point);
    if (found == bytes.end()) return std::nullopt;
    result.push_back(found->second);
    position += step.length;
  }
  return result;
}

namespace {

using nlohmann::json;
using Ids = std::vector<std::int32_t>;

class BpeTokenizer : public ByteLevelTokenizer {
 public:
  explicit BpeTokenizer(const std::filesystem::path& path) {
    const JsonFile file(path);
    const json& model = file.root()["model"];
    check_model(file, model);
    read_vocabulary(file, model);
    normalize_ = Normalizers(file);
    pre_tokenizer_ = PreTokenizer(file);
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
      if (normalized) token.content = normalize_(token.content);
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

  void encode_valid(std::string_view text, WordCache& cache, Ids& ids) const override {
    raw_tokens_.split(text, ids, [&](std::string_view raw) {
      std::string normalized;
      if (!normalize_.empty() && !is_ascii(raw)) raw = normalized = normalize_(std::string(raw));
      normalized_tokens_.split(raw, ids, [&](std::string_view part) {
        pre_tokenizer_.for_each_word(
            part, [&](std::string_view word) { cache.encode(*encoder_, word, ids); });
      });
    });
  }

  std::unordered_map<std::string, std::int32_t> ids_;
  std::vector<bool> taken_;  ///< ids that have a token; the others' bytes are empty
  Normalizers normalize_;
  PreTokenizer pre_tokenizer_;
  std::unique_ptr<BytePairEncoder> encoder_;
  AddedTokens raw_tokens_, normalized_tokens_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_bpe_tokenizer(const std::filesystem::path& json) {
  return std::make_unique<BpeTokenizer>(json);
}

}  // namespace trireme::tokenizer
