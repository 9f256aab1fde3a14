// The tokenizer of Yuan 1.0 and CPM: words by Chinese segmentation (jieba.cpp), then WordPiece.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "tokenizer/tokenizer.hpp"

namespace trireme::tokenizer {

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
