#include "tokenizer/bpe/bpe.hpp"

#include "core/error.hpp"
#include "core/files.hpp"
#include "tokenizer/bpe/gpt2.hpp"
#include "tokenizer/bpe/tokenizer_json.hpp"

namespace trireme::tokenizer {
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
