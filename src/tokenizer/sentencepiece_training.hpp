// Training a SentencePiece model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::tokenizer {

/// What to train.
struct SentencePieceTraining {
  std::int32_t size = 0;               ///< pieces in all, special and byte pieces included
  std::string model_type = "unigram";  ///< unigram or bpe
};

/// Trains on `sentences` and returns the serialized model. Ids: 0 is <unk>, 1 is <|endoftext|> (the
/// model's end of sentence), then 256 byte pieces, so that any text can be encoded, then the learnt
/// ones. Text is not normalised: decode(encode(text)) == text, but for U+2581, which stands for the
/// blank. Sentences are cut at U+2585, which the library keeps for itself: it is never learnt, and
/// encoded as bytes. Deterministic: the same sentences give the same bytes on any machine. Throws
/// UsageError for an unknown model type or a size below 1, DataError when the library cannot train,
/// as when the corpus is too small for the size.
std::string train_sentencepiece(const std::vector<std::string>& sentences,
                                const SentencePieceTraining& training);

}  // namespace trireme::tokenizer
