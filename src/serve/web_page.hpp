// The page at /: prompt, sampling controls, the answer as it comes, the probabilities of its
// tokens.
#pragma once

#include <string_view>

namespace trireme::serve {

/// HTML that loads nothing from elsewhere.
std::string_view web_page();

}  // namespace trireme::serve
