// The tokenizer of an exported model: its files, and its tokens that config.json names.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "deck/deck.hpp"

namespace trireme::convert::huggingface {

/// The token that ends documents; unset where the tokenizer has none or its files are not there.
std::optional<std::int64_t> end_of_document(const deck::Deck& deck);
/// The token that begins texts, by the tokenizer_config.json next to a tokenizer.json.
std::optional<std::int64_t> beginning_of_text(const deck::Deck& deck);

/// Writes the deck's tokenizer into the folder `to`, where transformers has one of its kind and its
/// files are there; `eod` is the token that ends documents. Returns a sentence that says which
/// files, or why there are none. Throws IoError where tokenizer_config.json cannot be written.
std::string write_tokenizer(const deck::Deck& deck, std::optional<std::int64_t> eod,
                            const std::filesystem::path& to);

}  // namespace trireme::convert::huggingface
