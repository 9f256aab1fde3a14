#include "tokenizer/bpe/gpt2.hpp"

#include <limits>

#include "core/error.hpp"
#include "tokenizer/bpe/words.hpp"
#include "tokenizer/utf8.hpp"

namespace trireme::tokenizer {

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
