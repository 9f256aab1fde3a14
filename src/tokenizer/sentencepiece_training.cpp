#include "tokenizer/sentencepiece_training.hpp"

#include <sentencepiece_trainer.h>

#include "core/error.hpp"
#include "tokenizer/vocabulary.hpp"

namespace trireme::tokenizer {
namespace {

constexpr std::size_t kMaxSentenceBytes = std::size_t{1} << 30;  // the library's own limit

class Sentences : public sentencepiece::SentenceIterator {
 public:
  explicit Sentences(const std::vector<std::string>& sentences) : sentences_(sentences) {}
  bool done() const override { return next_ == sentences_.size(); }
  void Next() override { ++next_; }
  const std::string& value() const override { return sentences_[next_]; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  const std::vector<std::string>& sentences_;
  std::size_t next_ = 0;
};

/// The reason in an error of the library, without the place in its sources and the failed condition
/// before it; all of it when nothing follows.
std::string_view reason_of(std::string_view message) {
  const std::size_t end = message.rfind("] ");
  return end == std::string_view::npos || end + 2 == message.size() ? message
                                                                    : message.substr(end + 2);
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
  if (!status.ok())
    throw DataError("SentencePiece cannot train a model of {} pieces on this corpus: {}",
                    training.size, reason_of(status.error_message()));
  return model;
}

}  // namespace trireme::tokenizer
