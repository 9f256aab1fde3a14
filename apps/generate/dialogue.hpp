// The dialogue of trireme-generate on a terminal.
#pragma once

#include <string>
#include <vector>

#include "generate/batch_decoder.hpp"
#include "generate/generator.hpp"
#include "tokenizer/tokenizer.hpp"

namespace trireme {

/// Reads prompts from the terminal, edited and with a history where libedit is there, and prints
/// each one's continuation while it is generated, until the end of the input. Ctrl-C ends a text.
void run_dialogue(generate::BatchDecoder& decoder, const tokenizer::Tokenizer& tokenizer,
                  const generate::Request& request, const std::vector<std::string>& stop_strings);

}  // namespace trireme
