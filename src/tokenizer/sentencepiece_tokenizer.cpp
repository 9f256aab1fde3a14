#include <sentencepiece_processor.h>

#include "core/error.hpp"
#include "core/files.hpp"
#include "tokenizer/implementations.hpp"
#include "tokenizer/utf8.hpp"
#include "tokenizer/vocabulary.hpp"

namespace trireme::tokenizer {
namespace {

class SentencePieceTokenizer : public Tokenizer {
 public:
  explicit SentencePieceTokenizer(const std::filesystem::path& model) {
    const auto status = processor_.LoadFromSerializedProto(read_regular_file(model));
    if (!status.ok())
      throw DataError("{}: not a SentencePiece model: {}", model.string(), status.error_message());
    const int named = processor_.PieceToId(kEndOfText);
    if (processor_.eos_id() >= 0)
      eod_ = processor_.eos_id();
    else if (!processor_.IsUnknown(named))
      eod_ = named;
  }

  std::string_view name() const override { return "sentencepiece"; }
  std::int32_t vocab_size() const override { return processor_.GetPieceSize(); }
  std::optional<std::int32_t> eod() const override { return eod_; }

  std::vector<std::int32_t> encode(std::string_view text) const override {
    std::vector<int> ids;
    const bool valid = valid_utf8_prefix(text) == text.size();
    check(valid ? processor_.Encode(text, &ids)
                : processor_.Encode(replace_invalid_utf8(text), &ids));
    return ids;
  }

  std::string decode(std::span<const std::int32_t> ids) const override {
    for (const std::int32_t id : ids) check_id(name(), id, vocab_size());
    std::string text;
    check(processor_.Decode(std::vector<int>(ids.begin(), ids.end()), &text));
    return text;
  }

 private:
  static void check(const sentencepiece::util::Status& status) {
    if (!status.ok()) throw DataError("SentencePiece: {}", status.error_message());
  }

  sentencepiece::SentencePieceProcessor processor_;
  std::optional<std::int32_t> eod_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(const std::filesystem::path& model) {
  return std::make_unique<SentencePieceTokenizer>(model);
}

}  // namespace trireme::tokenizer
