// A folder of a test's own.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace trireme::convert {

class ScratchFolder : public testing::Test {
 protected:
  ScratchFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "trireme_convert_XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
  }
  ~ScratchFolder() override { std::filesystem::remove_all(folder_); }

  /// Writes a file in the folder and returns its path.
  std::filesystem::path file(const std::string& name, const std::string& content) const {
    std::ofstream(folder_ / name, std::ios::binary) << content;
    return folder_ / name;
  }

  std::filesystem::path folder_;
};

/// The message of the Error that `work` throws, "" when it throws none.
template <typename Error, typename Work>
std::string message_of(const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace trireme::convert
