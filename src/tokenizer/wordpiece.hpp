// WordPiece (Wu et al. 2016) as BERT uses it: Google's tokenization.py, and training a vocabulary.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokenizer/tokenizer.hpp"

namespace trireme::tokenizer {

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
  std::vector<std::string> train(std::int32_t size, std::int32_t alphabet) const;

 private:
  bool lowercase_;
  std::unordered_map<std::string, std::int64_t> counts_;
};

}  // namespace trireme::tokenizer
