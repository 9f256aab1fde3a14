// What --version prints.
#pragma once

#include <string>

namespace trireme {

/// The commit that was built, 12 digits, followed by "+" if files differed from it; "unknown" for a
/// source tree without git.
const char* commit();

/// The version of `program`, the commit, and the versions of the compiler and of the libraries that
/// this build was compiled with: a line each. Starts nothing and loads no library.
std::string version_text(const std::string& program);

}  // namespace trireme
