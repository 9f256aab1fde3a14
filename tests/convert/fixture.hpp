// What the tests share: a folder of a test's own, messages of errors.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "../message_of.hpp"
#include "../scratch_folder.hpp"
#include "convert/convert.hpp"
#include "core/error.hpp"

namespace trireme::convert {

class FolderTest : public testing::Test {
 protected:
  /// Writes a file in the folder and returns its path.
  std::filesystem::path file(const std::string& name, const std::string& content) const {
    std::ofstream(folder_ / name, std::ios::binary) << content;
    return folder_ / name;
  }

  const ScratchFolder scratch_;
  const std::filesystem::path folder_ = scratch_.path();
};

namespace flags {

/// The message with which converting fails; "" when it does not.
inline std::string errors_of(const Request& request) {
  return message_of<DeckError>([&] { convert(request); });
}

}  // namespace flags

}  // namespace trireme::convert
