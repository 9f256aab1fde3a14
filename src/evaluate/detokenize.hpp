// Text of tokenized corpora as people write it. Source: Megatron-LM, tasks/zeroshot_gpt2.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace trireme::evaluate {

/// Undoes the tokenization of WikiText: " @-@ ", spaces before punctuation and within brackets and
/// quotes, headings. The replacements and their order are Megatron-LM's wikitext_detokenizer().
std::string detokenize_wikitext(std::string text);

/// Undoes the tokenization of the Penn Treebank: Megatron-LM's ptb_detokenizer().
std::string detokenize_ptb(std::string text);

/// The detokenizer that Megatron-LM takes for a file: by its path, "ptb" or else WikiText's.
std::string detokenize(std::string text, const std::filesystem::path& path);

/// Python's str.replace().
std::string replace_all(const std::string& text, std::string_view from, std::string_view to);

/// Python's str.strip(): without the white space at both ends.
std::string_view strip_space(std::string_view text);

/// Where the last word of `text`, which does not end with white space, begins: what follows the
/// last white space; text.size() for an empty text.
std::size_t last_word(std::string_view text);

/// Words of `text` as the word-level perplexity counts them: what single spaces separate, after
/// white space at both ends is removed.
std::int64_t count_words(std::string_view text);

}  // namespace trireme::evaluate
