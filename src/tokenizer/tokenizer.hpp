// Text to token ids and back.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::tokenizer {

/// Identifies a tokenizer in the records of datasets.
struct TokenizerIdentity {
  std::string type;             ///< Tokenizer::name()
  std::uint64_t hash = 0;       ///< Tokenizer::hash()
  std::int32_t vocab_size = 0;  ///< Tokenizer::vocab_size()
  std::string library;          ///< Tokenizer::library()

  /// Whether both encode texts to the same ids, as far as their files determine the ids.
  bool same_ids(const TokenizerIdentity& other) const {
    return type == other.type && hash == other.hash && vocab_size == other.vocab_size;
  }
};

/// "gpt2 of 50257 ids (hash 0f3a...)", for messages.
std::string to_text(const TokenizerIdentity& identity);

/// The ids of BERT's special tokens.
struct BertTokens {
  std::int32_t cls, sep, mask, pad;
};

/// A fixed vocabulary. Every member may be called from several threads concurrently.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// The type's name in decks and on command lines: "gpt2", "bpe", "sentencepiece", "wordpiece",
  /// "whitespace", "bytes".
  virtual std::string_view name() const = 0;

  /// Number of ids; they run from 0.
  virtual std::int32_t vocab_size() const = 0;

  /// The end-of-document id; nullopt when the vocabulary has none.
  virtual std::optional<std::int32_t> eod() const = 0;

  /// The ids of [CLS], [SEP], [MASK] and [PAD]; nullopt when the vocabulary lacks one of them.
  virtual std::optional<BertTokens> bert_tokens() const { return std::nullopt; }

  /// Whether `id` continues a word (WordPiece: it starts with "##"; SentencePiece: without U+2581).
  /// False for special tokens, and always for other types. Throws DataError for an id outside the
  /// vocabulary.
  virtual bool continues_word(std::int32_t) const { return false; }

  /// A hash of what determines ids in the tokenizer's files: it differs for other vocabularies or
  /// merges, and is equal for another spelling of the same JSON.
  virtual std::uint64_t hash() const = 0;

  /// The library and version on which ids depend besides the files: "sentencepiece 0.1.97" for a
  /// unigram model; "" where the files alone determine them, or the version is not known.
  virtual std::string library() const { return ""; }

  /// The four together.
  TokenizerIdentity identity() const {
    return {std::string(name()), hash(), vocab_size(), library()};
  }

  /// Ids of `text`. Bytes that are not UTF-8 become U+FFFD as with Python's errors='replace'
  /// ("bytes" keeps them). The names of special tokens in the text are ordinary text,
  /// except for "bpe", which finds its added tokens.
  virtual std::vector<std::int32_t> encode(std::string_view text) const = 0;

  /// Text of `ids`, as bytes: ids that end inside a character give an incomplete character. Throws
  /// DataError for an id outside the vocabulary.
  virtual std::string decode(std::span<const std::int32_t> ids) const = 0;
};

/// The type of a tokenizer, and its files.
struct TokenizerSpec {
  std::string type;  ///< gpt2, bpe, sentencepiece, wordpiece, encdec, whitespace or bytes
  /// JSON {"token": id}: gpt2, whitespace, encdec; a token per line: wordpiece, encdec
  std::filesystem::path vocab;
  std::filesystem::path merges;  ///< one merge a line, best first: gpt2
  /// SentencePiece model: sentencepiece; tokenizer.json: bpe; folder of jieba: encdec
  std::filesystem::path model;
  std::optional<bool> lowercase = std::nullopt;  ///< whether the vocabulary is uncased: wordpiece
};

/// Makes the tokenizer of `spec`. Throws UsageError for an unknown type, for a file or a
/// `lowercase` that is missing from the spec or does not belong to the type; IoError for a file
/// that cannot be read; DataError for one that is malformed. All name the file and the reason.
std::unique_ptr<Tokenizer> make_tokenizer(const TokenizerSpec& spec);

}  // namespace trireme::tokenizer
