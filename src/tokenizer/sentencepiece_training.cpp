#include "tokenizer/sentencepiece_training.hpp"

#include <sentencepiece_trainer.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "core/error.hpp"
#include "tokenizer/vocabulary.hpp"

namespace trireme::tokenizer {
namespace {

constexpr std::size_t kMaxSentenceBytes = std::size_t{1} << 30;  // the library's own limit

// Stands for unknown characters in the library, which leaves out sentences with it without a word.
constexpr std::string_view kReserved = "\u2585";

/// Sentences, cut at the library's own character.
class Sentences : public sentencepiece::SentenceIterator {
 public:
  explicit Sentences(const std::vector<std::string>& sentences) : sentences_(sentences) { find(); }
  bool done() const override { return which_ == sentences_.size(); }
  void Next() override { find(); }
  const std::string& value() const override { return part_; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  // Moves on to the next part that is not empty.
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
  std::size_t which_ = 0;  // the sentence
  std::size_t at_ = 0;     // where its next part begins
  std::string part_;
};

/// The reason in an error of the library, without the place in its sources and the failed condition
/// before it; all of it when nothing follows.
std::string_view reason_of(std::string_view message) {
  const std::size_t end = message.rfind("] ");
  return end == std::string_view::npos || end + 2 == message.size() ? message
                                                                    : message.substr(end + 2);
}

/// The fewest pieces of a model for this corpus, which the library tells in "smaller than
/// required_chars. 10 vs 311."; 0 where the error is another one.
int fewest_pieces(std::string_view message) {
  constexpr std::string_view kBefore = " vs ";
  const std::size_t about = message.find("required_chars");
  if (about == std::string_view::npos) return 0;
  const std::size_t at = message.find(kBefore, about);
  int pieces = 0;
  if (at != std::string_view::npos)
    std::from_chars(message.data() + at + kBefore.size(), message.data() + message.size(), pieces);
  return pieces;
}

}  // namespace

std::string train_sentencepiece(const std::vector<std::string>& sentences,
                                const SentencePieceTraining& training) {
  if (training.model_type != "unigram" && training.model_type != "bpe")
    throw UsageError("unknown model type '{}': expected unigram or bpe", training.model_type);
  if (training.size < 1) throw UsageError("a model of {} pieces cannot be", training.size);
  if (sentences.empty()) throw DataError("there is no text to train on");
  // The library would leave out what is longer without a word.
  for (const std::string& sentence : sentences)
    if (sentence.size() > kMaxSentenceBytes)
      throw DataError("a line of {} bytes is too long to train on: the limit is 1 GiB",
                      sentence.size());
  Sentences iterator(sentences);
  if (iterator.done())
    throw DataError(
        "there is no text to train on: all of it is U+2585, a character that SentencePiece keeps "
        "for itself");
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train(
      {
          {"model_type", training.model_type},
          {"vocab_size", std::to_string(training.size)},
          {"unk_id", "0"},
          {"eos_id", "1"},
          {"bos_id", "-1"},
          {"pad_id", "-1"},
          {"eos_piece", std::string(kEndOfText)},
          {"byte_fallback", "true"},
          {"normalization_rule_name", "identity"},
          {"remove_extra_whitespaces", "false"},
          {"max_sentence_length", std::to_string(kMaxSentenceBytes)},
          // Sums depend on how many threads share them: a fixed number keeps models reproducible.
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
  if (!status.ok())
    throw DataError("SentencePiece cannot train a model of {} pieces on this corpus: {}",
                    training.size, reason_of(status.error_message()));
  return model;
}

}  // namespace trireme::tokenizer
