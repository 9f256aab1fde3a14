// Text to token ids and back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
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

/// "gpt2 of 50257 ids (hash 0f3a...)", for messages and checkpoints.
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

  /// The library and version on which ids depend with the files: "sentencepiece 0.1.97" for a
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

// Vocabulary files: JSON objects {"token": id}, or a token per line.

/// The end-of-document token.
inline constexpr std::string_view kEndOfText = "<|endoftext|>";

/// Tokens and their ids, 0 to size() - 1, each used once.
class Vocabulary {
 public:
  enum class Format {
    json,  ///< an object {"token": id} with the ids 0 to N-1, each once
    lines  ///< a token per line, in the order of their ids; each once
  };

  /// Reads `path`. Throws IoError when it cannot be read, DataError (file and reason) when it is
  /// not of `format`.
  explicit Vocabulary(const std::filesystem::path& path, Format format = Format::json);

  /// The file, for messages.
  const std::filesystem::path& path() const { return path_; }

  std::int32_t size() const { return static_cast<std::int32_t>(tokens_.size()); }

  /// The token of `id`, which must be below size(), as the file spells it.
  const std::string& token(std::int32_t id) const { return tokens_[static_cast<std::size_t>(id)]; }

  /// A hash of the tokens in the order of their ids.
  std::uint64_t hash() const;

  /// The id of `token`, if the vocabulary has it.
  std::optional<std::int32_t> find(std::string_view token) const;

 private:
  void read_json(const std::string& content);
  void read_lines(std::string_view content);
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  std::filesystem::path path_;
  std::vector<std::string> tokens_;
  std::unordered_map<std::string, std::int32_t, Hash, std::equal_to<>> ids_;
};

/// Throws DataError that names `tokenizer` unless 0 <= id < vocab_size.
void check_id(std::string_view tokenizer, std::int32_t id, std::int32_t vocab_size);

// ---- UTF-8: validity, repair, code points

/// U+FFFD, which stands for bytes that are not UTF-8.
inline constexpr char32_t kReplacement = 0xFFFD;

/// One step of decoding UTF-8.
struct Utf8Step {
  std::size_t length;   ///< bytes consumed, at least 1: a character, or an invalid part
  bool valid;           ///< whether these bytes are a character
  char32_t code_point;  ///< the character; U+FFFD when not valid
};

/// Reads one character at text[position], position < text.size(). An invalid part is a "maximal
/// subpart" (Unicode 14, section 3.9), as in Python.
Utf8Step read_utf8(std::string_view text, std::size_t position);

/// Bytes of the longest valid prefix of `text`: text.size() when all of it is UTF-8.
std::size_t valid_utf8_prefix(std::string_view text);

/// `text` with every invalid part replaced by U+FFFD, like Python's decode(errors='replace').
std::string replace_invalid_utf8(std::string_view text);

/// Appends the UTF-8 bytes of `code_point`, which must be at most U+10FFFF and no surrogate.
void append_utf8(std::string& text, char32_t code_point);

}  // namespace trireme::tokenizer
