#include <sentencepiece_processor.h>

#include <string_view>

#include "core/content_hash.hpp"
#include "core/error.hpp"
#include "core/files.hpp"
#include "tokenizer/implementations.hpp"
#include "tokenizer/utf8.hpp"
#include "tokenizer/vocabulary.hpp"

namespace trireme::tokenizer {
namespace {

// The library's installed headers do not have the protocol buffer of a model, of which one number
// is needed: field 3, model_type, of field 2, trainer_spec (sentencepiece_model.proto).

/// Reads a varint from the front of `bytes`; false at the end.
bool read_varint(std::string_view& bytes, std::uint64_t& value) {
  value = 0;
  for (int shift = 0; shift < 64 && !bytes.empty(); shift += 7) {
    const auto byte = static_cast<unsigned char>(bytes.front());
    bytes.remove_prefix(1);
    value |= std::uint64_t{byte & 0x7fu} << shift;
    if (byte < 0x80) return true;
  }
  return false;
}

/// Calls `visit(number, varint, bytes)` for each field of a message.
template <typename Visit>
void for_each_field(std::string_view message, Visit&& visit) {
  std::uint64_t key = 0, value = 0;
  while (read_varint(message, key)) {
    std::size_t size = 0;
    switch (key & 7) {
      case 0:
        if (!read_varint(message, value)) return;
        break;
      case 1:
        size = 8;
        break;
      case 2:
        if (!read_varint(message, value)) return;
        size = value;
        break;
      case 5:
        size = 4;
        break;
      default:
        return;
    }
    if (size > message.size()) return;
    visit(key >> 3, value, message.substr(0, size));
    message.remove_prefix(size);
  }
}

bool is_unigram(std::string_view model) {
  std::uint64_t type = 1;  // UNIGRAM is the default
  for_each_field(model, [&](std::uint64_t number, std::uint64_t, std::string_view spec) {
    if (number != 2) return;
    for_each_field(spec, [&](std::uint64_t field, std::uint64_t value, std::string_view) {
      if (field == 3) type = value;
    });
  });
  return type == 1;
}

/// What the library says, without the place in its sources and the failed condition.
std::string reason_of(const sentencepiece::util::Status& status) {
  const std::string message = status.error_message();
  if (message.find("ParseFromArray") != std::string::npos) return "it is no protocol buffer of one";
  const std::size_t end = message.rfind("] ");
  return end == std::string::npos || end + 2 >= message.size() ? message : message.substr(end + 2);
}

class SentencePieceTokenizer : public Tokenizer {
 public:
  explicit SentencePieceTokenizer(const std::filesystem::path& model) {
    const std::string content = read_regular_file(model);
    const auto status = processor_.LoadFromSerializedProto(content);
    if (!status.ok())
      throw DataError(
          "{}: not a SentencePiece model: {}; give the .model file that trireme-tokenizer train or "
          "spm_train wrote (a vocab.json belongs to the gpt2 tokenizer)",
          model.string(), reason_of(status));
    hash_.add(content);
    const std::string_view version = TRIREME_SENTENCEPIECE_VERSION;
    if (is_unigram(content) && !version.empty())
      library_ = fmt::format("sentencepiece {}", version);
    const int named = processor_.PieceToId(kEndOfText);
    if (processor_.eos_id() >= 0)
      eod_ = processor_.eos_id();
    else if (!processor_.IsUnknown(named))
      eod_ = named;
  }

  std::string_view name() const override { return "sentencepiece"; }
  std::int32_t vocab_size() const override { return processor_.GetPieceSize(); }
  std::optional<std::int32_t> eod() const override { return eod_; }
  std::uint64_t hash() const override { return hash_.value(); }
  std::string library() const override { return library_; }

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
  ContentHash hash_;
  std::string library_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(const std::filesystem::path& model) {
  return std::make_unique<SentencePieceTokenizer>(model);
}

}  // namespace trireme::tokenizer
