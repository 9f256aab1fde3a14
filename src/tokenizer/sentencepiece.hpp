// SentencePiece: encoding with a model, and training one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tokenizer/tokenizer.hpp"

namespace trireme::tokenizer {

/// A SentencePiece model of any type. eod is the model's end-of-sentence piece, or its piece
/// <|endoftext|> where the model has no end of sentence. BERT's tokens are the pieces [CLS], [SEP],
/// [MASK] and [PAD]. Throws as make_tokenizer().
std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(const std::filesystem::path& model);

/// Options of training.
struct SentencePieceTraining {
  std::int32_t size = 0;               ///< number of pieces, with special and byte pieces
  std::string model_type = "unigram";  ///< unigram or bpe
  bool bert_tokens = false;            ///< add [PAD], [CLS], [SEP] and [MASK]
};

/// The serialized model, and the text of its .vocab file: a line "piece<TAB>score" per piece.
struct SentencePieceModel {
  std::string model, vocab;
  bool operator==(const SentencePieceModel&) const = default;
};

/// Trains on `sentences`. Ids: 0 is <unk>, 1 is <|endoftext|> (the
/// model's end of sentence), then BERT's
/// tokens if asked for, then 256 byte pieces, so that any text can be encoded, then the learnt
/// pieces. Text is not normalized: decode(encode(text)) == text, except for U+2581, which encodes a
/// blank. Sentences are split at U+2585, which the library reserves: it is never learnt, and is
/// encoded as bytes. Deterministic: the same sentences give the same bytes on any machine. Throws
/// UsageError for an unknown model type or a size below 1, DataError when the library cannot train,
/// for example on a corpus that is too small for the size.
SentencePieceModel train_sentencepiece(const std::vector<std::string>& sentences,
                                       const SentencePieceTraining& training);

}  // namespace trireme::tokenizer
