// Continuations as text.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "tokenizer/tokenizer.hpp"

namespace trireme::generate {

/// What `ids` add to the text of `prompt`: the two are decoded together, so that a space between
/// them is kept. Always UTF-8: parts of characters, such as an end cut inside one, become U+FFFD.
std::string continuation_text(const tokenizer::Tokenizer& tokenizer,
                              std::span<const std::int32_t> prompt,
                              std::span<const std::int32_t> ids);

}  // namespace trireme::generate
