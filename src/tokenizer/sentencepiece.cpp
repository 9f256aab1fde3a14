#include "tokenizer/kinds.hpp"

#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "core/error.hpp"
#include "core/files.hpp"
#include "tokenizer/tokenizer.hpp"

namespace trireme::tokenizer {
namespace {

// The library installs no header for the protocol buffer of a model. The tokenizer needs one number
// of it: field 3, model_type, of field 2, trainer_spec (sentencepiece_model.proto).

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

/// The reason in an error message of the library, without the source line and the failed condition
/// before it; the whole message when nothing follows them.
std::string_view reason_of(std::string_view message) {
  const std::size_t end = message.rfind("] ");
  return end == std::string_view::npos || end + 2 == message.size() ? message
                                                                    : message.substr(end + 2);
}

/// The library's mark of a blank, with which the first piece of a word starts.
constexpr std::string_view kWordStart = "\u2581";

class SentencePieceTokenizer : public Tokenizer {
 public:
  explicit SentencePieceTokenizer(const std::filesystem::path& model) {
    const std::string content = read_regular_file(model);
    const auto status = processor_.LoadFromSerializedProto(content);
    if (!status.ok()) {
      const std::string message = status.error_message();
      const bool parsed = message.find("ParseFromArray") == std::string::npos;
      throw DataError(
          "{}: not a SentencePiece model: {}; give the .model file that trireme-tokenizer train or "
          "spm_train wrote (a vocab.json belongs to the gpt2 tokenizer)",
          model.string(),
          content.empty() ? "it is empty"
          : parsed        ? reason_of(message)
                          : "it is not a protocol buffer of one");
    }
    hash_.add(content);
    const std::string_view version = TRIREME_SENTENCEPIECE_VERSION;
    if (is_unigram(content) && !version.empty())
      library_ = fmt::format("sentencepiece {}", version);
    const int named = processor_.PieceToId(kEndOfText);
    if (processor_.eos_id() >= 0)
      eod_ = processor_.eos_id();
    else if (!processor_.IsUnknown(named))
      eod_ = named;
    const auto id = [&](const char* piece) { return processor_.PieceToId(piece); };
    const BertTokens bert = {id("[CLS]"), id("[SEP]"), id("[MASK]"), id("[PAD]")};
    const auto known = [&](int piece) { return !processor_.IsUnknown(piece); };
    if (known(bert.cls) && known(bert.sep) && known(bert.mask) && known(bert.pad)) bert_ = bert;
  }

  std::string_view name() const override { return "sentencepiece"; }
  std::int32_t vocab_size() const override { return processor_.GetPieceSize(); }
  std::optional<std::int32_t> eod() const override { return eod_; }
  std::optional<BertTokens> bert_tokens() const override { return bert_; }
  bool continues_word(std::int32_t id) const override {
    check_id(name(), id, vocab_size());
    return !processor_.IsControl(id) && !processor_.IsUnknown(id) &&
           !processor_.IdToPiece(id).starts_with(kWordStart);
  }
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
  std::optional<BertTokens> bert_;
  ContentHash hash_;
  std::string library_;
};

constexpr std::size_t kMaxSentenceBytes = std::size_t{1} << 30;  // the library's own limit

// The library's mark of unknown characters: it silently skips sentences that contain it.
constexpr std::string_view kReserved = "\u2585";

/// Sentences, split at the library's reserved character.
class Sentences : public sentencepiece::SentenceIterator {
 public:
  explicit Sentences(const std::vector<std::string>& sentences) : sentences_(sentences) { find(); }
  bool done() const override { return which_ == sentences_.size(); }
  void Next() override { find(); }
  const std::string& value() const override { return part_; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  // Advances to the next part that is not empty.
  void find() {
    for (; which_ < sentences_.size(); ++which_, at_ = 0) {
      const std::string_view sentence = sentences_[which_];
      while (at_ < sentence.size()) {
        const std::size_t end = std::min(sentence.find(kReserved, at_), sentence.size());
        part_ = sentence.substr(at_, end - at_);
        at_ = end + kReserved.size();
        if (!part_.empty()) return;
      }
    }
  }

  const std::vector<std::string>& sentences_;
  std::size_t which_ = 0;  // index of the sentence
  std::size_t at_ = 0;     // offset of its next part
  std::string part_;
};

/// The number after `word`, and `before` after that, in a message of the library; 0 without it.
int number_after(std::string_view message, std::string_view word, std::string_view before) {
  const std::size_t about = message.find(word);
  if (about == std::string_view::npos) return 0;
  const std::size_t at = message.find(before, about);
  int number = 0;
  if (at != std::string_view::npos)
    std::from_chars(message.data() + at + before.size(), message.data() + message.size(), number);
  return number;
}

/// The minimum number of pieces for this corpus, from the library's message "smaller than
/// required_chars. 10 vs 311."; 0 for another error.
int fewest_pieces(std::string_view message) {
  return number_after(message, "required_chars", " vs ");
}

/// The maximum, from "Vocabulary size too high (5000). Please set it to a value <= 854."
int most_pieces(std::string_view message) { return number_after(message, "too high", "<= "); }

/// The text of the .vocab file that spm_train writes.
std::string vocab_of(const std::string& model) {
  sentencepiece::SentencePieceProcessor processor;
  const auto status = processor.LoadFromSerializedProto(model);
  TRIREME_CHECK(status.ok(), "SentencePiece: {}", status.error_message());
  std::string vocab;
  for (int id = 0; id < processor.GetPieceSize(); ++id)
    vocab += fmt::format("{}\t{:g}\n", processor.IdToPiece(id), processor.GetScore(id));
  return vocab;
}

}  // namespace

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(const std::filesystem::path& model) {
  return std::make_unique<SentencePieceTokenizer>(model);
}

SentencePieceModel train_sentencepiece(const std::vector<std::string>& sentences,
                                       const SentencePieceTraining& training) {
  if (training.model_type != "unigram" && training.model_type != "bpe")
    throw UsageError("unknown model type '{}': expected unigram or bpe", training.model_type);
  if (training.size < 1)
    throw UsageError("--size {}: a model needs at least one piece", training.size);
  if (sentences.empty()) throw DataError("there is no text to train on");
  // The library silently skips longer sentences.
  for (const std::string& sentence : sentences)
    if (sentence.size() > kMaxSentenceBytes)
      throw DataError("a line of {} bytes is too long to train on: the limit is 1 GiB",
                      sentence.size());
  Sentences iterator(sentences);
  if (iterator.done())
    throw DataError(
        "there is no text to train on: all of it is U+2585, a character that SentencePiece "
        "reserves");
  // With fewer than these the library fails before it counts the pieces that are needed.
  constexpr std::int32_t kUnknownAndEnd = 2;
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train(
      {
          {"model_type", training.model_type},
          {"vocab_size", std::to_string(std::max(training.size, kUnknownAndEnd))},
          {"unk_id", "0"},
          {"eos_id", "1"},
          {"bos_id", "-1"},
          {"pad_id", "-1"},
          {"eos_piece", std::string(kEndOfText)},
          {"control_symbols", training.bert_tokens ? "[PAD],[CLS],[SEP],[MASK]" : ""},
          {"byte_fallback", "true"},
          {"normalization_rule_name", "identity"},
          {"remove_extra_whitespaces", "false"},
          {"max_sentence_length", std::to_string(kMaxSentenceBytes)},
          // The order of floating-point sums depends on the number of threads: a fixed number keeps
          // models reproducible.
          {"num_threads", "4"},
          {"minloglevel", "2"},
      },
      &iterator, &model);
  const std::string_view message = status.message();
  if (const int fewest = status.ok() ? 0 : fewest_pieces(message))
    throw DataError(
        "a model of {} pieces is too small: the bytes, the special pieces and the characters of "
        "this corpus alone are {}; give --size {} or more",
        training.size, fewest, fewest);
  if (const int most = status.ok() ? 0 : most_pieces(message))
    throw DataError(
        "this corpus gives at most {} pieces, fewer than {}; give --size {} or less, or more text",
        most, training.size, most);
  if (!status.ok())
    throw DataError("SentencePiece cannot train a model of {} pieces on this corpus: {}",
                    training.size, reason_of(status.error_message()));
  return {model, vocab_of(model)};
}

}  // namespace trireme::tokenizer
