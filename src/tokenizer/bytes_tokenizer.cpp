#include "core/content_hash.hpp"
#include "tokenizer/implementations.hpp"
#include "tokenizer/vocabulary.hpp"

namespace trireme::tokenizer {
namespace {

class BytesTokenizer : public Tokenizer {
 public:
  std::string_view name() const override { return "bytes"; }
  std::int32_t vocab_size() const override { return 257; }
  std::optional<std::int32_t> eod() const override { return 256; }
  std::uint64_t hash() const override { return ContentHash().value(); }  // there is only one

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

}  // namespace

std::unique_ptr<Tokenizer> make_bytes_tokenizer() { return std::make_unique<BytesTokenizer>(); }

}  // namespace trireme::tokenizer
