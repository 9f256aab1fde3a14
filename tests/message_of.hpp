// What an error says.
#pragma once

#include <string>

namespace trireme {

/// The message of the `Error` that `work` throws, "" when it throws none.
template <typename Error, typename Work>
std::string message_of(const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace trireme
