// Splitting text into sentences by rules.
#pragma once

#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace trireme::tokenizer {

/// What the rules know of a language. Words are spelled as before their last period ("e.g"), and
/// match capitalized, too ("E.g").
struct SentenceRules {
  using Words = std::unordered_set<std::string_view>;
  std::string_view code, name;  ///< "en", "english"
  Words never_last;             ///< abbreviations that never end a sentence: Mr, e.g
  Words before_number;          ///< abbreviations only before a number or one capital: No, p, Fig
  Words perhaps_last;           ///< abbreviations that may end one: etc, Inc, a.m
  Words starters;               ///< words that, capitalized, start a sentence after these: The, It
  bool ordinal_period = false;  ///< whether "3." is an ordinal number
};

/// The rules of a language by its code or name; those of no language ("none") have no words.
/// Throws UsageError for an unknown language, naming those that there are.
const SentenceRules& sentence_rules(std::string_view language);

/// The sentences of valid UTF-8, in order, without the white space between them; with
/// `keep_newlines` each with the white space after it, so that they join to `text`. The rules:
///  1. A blank line ends a sentence; a single newline is white space.
///  2. A sentence ends with ".", "!", "?", "…" or another terminator of Unicode (UAX 29: STerm,
///     ATerm), or several, together with closing quotes and brackets and references like "[12]"
///     after them, where white space follows; a closing » may have white space before it.
///     Ideographic terminators need no white space.
///  3. Not where the next word is in lower case, or "," ";" ":" follows. Quotes, brackets and
///     dashes before that word do not count.
///  4. Not after one period that ends an abbreviation: one of `never_last`; one of `before_number`
///     before a number; one of `perhaps_last`, a single letter (an initial) or letters with periods
///     (U.S), unless the next word is one of `starters`.
///  5. Not after a number with one period that starts the sentence ("1. Introduction") or, with
///     `ordinal_period`, has at most two digits and is not followed by one of `starters`.
std::vector<std::string_view> split_sentences(std::string_view text, const SentenceRules& rules,
                                              bool keep_newlines = false);

/// `text` with plain punctuation: quotes of all forms (and `` and '') become " and ', dashes and
/// hyphens -, ellipses ..., blanks of all widths one blank, newlines kept; soft hyphens and
/// zero-width characters vanish.
std::string standardize_punctuation(std::string_view text);

}  // namespace trireme::tokenizer
