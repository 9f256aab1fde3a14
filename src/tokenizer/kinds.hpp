// The kinds of tokenizers but GPT-2's (bpe/bpe.hpp), each with the training of its vocabulary.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokenizer/bpe/bpe.hpp"
#include "tokenizer/tokenizer.hpp"

namespace trireme::tokenizer {

// WordPiece (Wu et al. 2016) as BERT uses it: Google's tokenization.py, and training a vocabulary.

/// What pieces that continue a word begin with.
inline constexpr std::string_view kContinues = "##";

/// The maximum length of a word in characters; a longer word becomes [UNK]. Hugging Face's limit
/// (Google's first release and Megatron-LM have 200).
inline constexpr std::size_t kMaxWordCharacters = 100;

/// Calls `take` with each word of `text`, in order, as BERT's BasicTokenizer finds them: drops
/// control characters (category C*) and U+FFFD, splits at white space, around CJK ideographs and
/// around punctuation; `lowercase` also lower-cases, decomposes (NFD) and drops combining marks
/// (Mn). Invalid UTF-8 counts as U+FFFD. Characters are those of Unicode 15.0: later ones count as
/// unassigned, so that words do not depend on the version of ICU.
void for_each_bert_word(std::string_view text, bool lowercase,
                        const std::function<void(std::string_view)>& take);

/// A WordPiece tokenizer: the longest piece of the vocabulary first, "##" before pieces that
/// continue a word. `vocab` has a piece per line, with [PAD], [UNK], [CLS], [SEP] and [MASK]. eod
/// is [EOS] where the vocabulary has it. Throws as make_tokenizer().
std::unique_ptr<Tokenizer> make_wordpiece_tokenizer(const std::filesystem::path& vocab,
                                                    bool lowercase);

/// Learns a WordPiece vocabulary from the counts of words, as Hugging Face's WordPieceTrainer does:
/// merges the most frequent pair of adjacent pieces until the vocabulary is full. Deterministic.
class WordPieceTrainer {
 public:
  explicit WordPieceTrainer(bool lowercase) : lowercase_(lowercase) {}

  /// Counts the words of `text`.
  void add(std::string_view text);

  /// The pieces: [PAD], [UNK], [CLS], [SEP], [MASK], then characters, then merged pieces. `size` is
  /// their number; `alphabet` is the maximum number of distinct characters, the most frequent
  /// first: words with other characters are not learnt. Throws UsageError for a size or alphabet
  /// below 1, DataError when `size` does not hold the characters or the corpus has fewer pieces.
  /// `progress` gets a progress meter, null nothing.
  std::vector<std::string> train(std::int32_t size, std::int32_t alphabet,
                                 std::FILE* progress = nullptr) const;

 private:
  bool lowercase_;
  std::unordered_map<std::string, std::int64_t> counts_;
};

// SentencePiece: encoding with a model, and training one.

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

// Byte-level BPE in the form of Hugging Face's tokenizer.json: reading it, and training one.

/// The tokenizer of a tokenizer.json: ids equal to those of the tokenizers library without its
/// post-processor, which adds tokens before and after a text. Reads byte-level BPE: model BPE (with
/// ignore_merges), added tokens, which are found in the text as the library finds them, the
/// normalizers NFC, NFD, NFKC and NFKD, the pre-tokenizers ByteLevel, Split with behavior Isolated
/// and Digits, and sequences of them. eod is the eos_token of the tokenizer_config.json next to the
/// file, else the first of <|endoftext|>, <|end_of_text|>, </s> that the vocabulary has. Throws as
/// make_tokenizer(); DataError that names what is of another kind.
std::unique_ptr<Tokenizer> make_bpe_tokenizer(const std::filesystem::path& json);

/// The normalization form NFC of `text`, which must be valid UTF-8.
std::string normalize_nfc(std::string_view text);

/// Counts the words of texts and makes a byte-level BPE vocabulary of them.
class BpeTrainer {
 public:
  /// `pattern` is "gpt2", "llama3" or "qwen". Throws UsageError for another.
  explicit BpeTrainer(const std::string& pattern);

  /// Counts the words of `text`.
  void add(std::string_view text);

  /// A tokenizer.json with `size` ids: <|endoftext|>, the 256 bytes, then the results of merges,
  /// the most frequent pair first; of equally frequent ones that of the lower ids (as
  /// BpeTrainer of the tokenizers library). Throws UsageError for a size below 257; DataError for
  /// texts that have fewer pairs that occur twice. `progress` gets a progress meter, null nothing.
  std::string train(std::int32_t size, std::FILE* progress = nullptr) const;

 private:
  std::string_view pattern_;
  bool nfc_;  ///< Qwen's normalizer
  WordPattern words_;
  std::unordered_map<std::string, std::int64_t> counts_;
};

// The tokenizer of Yuan 1.0 and CPM: words by Chinese segmentation (jieba.cpp), then WordPiece.

/// The code points of UTF-8, with U+FFFD for invalid parts; and back.
std::u32string decode_text(std::string_view text);
std::string encode_text(std::u32string_view text);

/// jieba.cut(text, cut_all=False) of jieba 0.42 (MIT licence): the most probable path through the
/// words of a dictionary; unknown words by a hidden Markov model of characters that begin,
/// continue, end or are a word.
class Jieba {
 public:
  /// `folder` is that of the Python package. Throws IoError when its dict.txt or
  /// finalseg/prob_{start,trans,emit}.py cannot be read, DataError for malformed ones.
  explicit Jieba(const std::filesystem::path& folder);
  ~Jieba();

  /// Calls `take` with every word of `text`, which they join to.
  void cut(std::u32string_view text, const std::function<void(std::u32string_view)>& take) const;

 private:
  class Model;
  std::unique_ptr<const Model> model_;
};

/// EncDecTokenizer (tokenization_enc_dec.py of CPM-2, Yuan 1.0 and the ASC22 student competition):
///  1. White space and the characters "<", "n" and ">" at both ends of the text vanish; "<n>"
///     becomes a line break, as in the competition's preprocessing.
///  2. Words are those of jieba's precise mode, with its model of unknown words.
///  3. Blanks become U+2582 and line breaks U+2583.
///  4. Each word becomes the longest pieces of the vocabulary from its start; pieces without a
///     Chinese character (U+4E00 to U+9FFF) that continue a word begin with "##". A character
///     without a piece becomes <unk>, and so does a word of more than 200 characters.
///  5. A blank between two pieces without Chinese characters vanishes, except at the ends.
/// `vocab` has a piece per line (vocab.txt), or is JSON {"piece": id}; it needs <unk>, and <eod> is
/// eod. `jieba` is the folder of the Python package (Debian: python3-jieba), of which dict.txt and
/// finalseg/prob_{start,trans,emit}.py are read. Throws as make_tokenizer().
std::unique_ptr<Tokenizer> make_encdec_tokenizer(const std::filesystem::path& vocab,
                                                 const std::filesystem::path& jieba);

}  // namespace trireme::tokenizer
