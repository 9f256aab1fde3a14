// The tokenizer of Yuan 1.0 and CPM: words by Chinese segmentation, then WordPiece.
#pragma once

#include <filesystem>
#include <memory>

#include "tokenizer/tokenizer.hpp"

namespace trireme::tokenizer {

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
