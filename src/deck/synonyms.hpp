// What other trainers call the deck's keys and values.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace trireme::deck {

/// A name of Megatron-LM, DeepSpeed, PyTorch, Hugging Face, nanotron or llm.c.
struct Synonym {
  std::string_view name;  ///< in small letters, words joined by `_`
  std::string_view key;   ///< the deck's key; "" if there is none
  std::string_view note;  ///< what else to know, without a full stop; "" if nothing
};

/// All synonyms, several of a key in turn.
const std::vector<Synonym>& synonyms();

/// The synonym called `name`, whose letters may be capital and whose words may be joined by `-`,
/// `_` or spaces, or nullptr.
const Synonym* find_synonym(std::string_view name);

/// The value among `words` for which other programs write `text` (bf16 for bfloat16), or "".
std::string_view synonymous_value(std::string_view text,
                                  const std::vector<std::string_view>& words);

/// `name` in small letters, without `-`, `_`, `.` and spaces.
std::string plain_name(std::string_view name);

}  // namespace trireme::deck
