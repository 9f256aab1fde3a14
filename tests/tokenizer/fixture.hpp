// What the tokenizer tests share.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <string>

#include "core/error.hpp"
#include "core/files.hpp"
#include "tokenizer/tokenizer.hpp"

namespace trireme::tokenizer {

/// Where the repository's test data lie.
inline std::filesystem::path test_data(const std::string& name) {
  return std::filesystem::path(TRIREME_SOURCE_DIR) / "tests" / "data" / name;
}

/// GPT-2's own tokenizer, loaded once.
inline const Tokenizer& gpt2() {
  static const auto tokenizer =
      make_tokenizer({"gpt2", test_data("gpt2/vocab.json"), test_data("gpt2/merges.txt"), {}});
  return *tokenizer;
}

/// A test with an empty folder of its own.
class FolderTest : public testing::Test {
 protected:
  FolderTest() {
    std::string name = (std::filesystem::temp_directory_path() / "trireme_test_XXXXXX").string();
    if (!::mkdtemp(name.data())) throw IoError("cannot make folder '{}'", name);
    folder_ = name;
  }
  ~FolderTest() override {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  /// Writes a file in the folder and returns its path.
  std::string write(const std::string& name, std::string_view content) const {
    write_file_atomically(folder_ / name, content);
    return (folder_ / name).string();
  }

  std::filesystem::path folder_;
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
