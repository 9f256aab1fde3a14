// Words for a shell.
#pragma once

#include <string>

namespace trireme {

/// `word` as one word of a shell's command line: quoted where it needs to be.
std::string shell_word(const std::string& word);

}  // namespace trireme
