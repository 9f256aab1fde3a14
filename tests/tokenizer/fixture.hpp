// What the tokenizer tests share.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "../scratch_folder.hpp"
#include "core/error.hpp"
#include "core/files.hpp"
#include "tokenizer/tokenizer.hpp"

namespace trireme::tokenizer {

/// Where the repository's test data lie.
inline std::filesystem::path test_data(const std::string& name) {
  return std::filesystem::path(TRIREME_SOURCE_DIR) / "tests" / "data" / name;
}

/// The bytes that hexadecimal digits write.
inline std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2)
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

/// GPT-2's own tokenizer, loaded once.
inline const Tokenizer& gpt2() {
  static const auto tokenizer =
      make_tokenizer({"gpt2", test_data("gpt2/vocab.json"), test_data("gpt2/merges.txt"), {}});
  return *tokenizer;
}

/// A test with its own empty folder.
class FolderTest : public testing::Test {
 protected:
  /// Writes a file in the folder and returns its path.
  std::string write(const std::string& name, std::string_view content) const {
    write_file_atomically(folder_ / name, content);
    return (folder_ / name).string();
  }

  const ScratchFolder scratch_;
  const std::filesystem::path folder_ = scratch_.path();
};

/// The message of the `ErrorType` that `action` throws; fails when it throws none.
template <typename ErrorType, typename Action>
std::string message_of(Action&& action) {
  try {
    action();
  } catch (const ErrorType& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

}  // namespace trireme::tokenizer
