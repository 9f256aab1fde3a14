#include "core/system/process.hpp"

#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <string>
#include <thread>

#include "../../scratch_folder.hpp"
#include "core/files.hpp"

namespace trireme {
namespace {

/// Keeps its thread until `end`.
__attribute__((noinline)) void wait_in_a_named_function(const std::atomic<bool>& end) {
  while (!end) ::poll(nullptr, 0, 1);
}

TEST(Stacks, NameWhatEachThreadDoesOnce) {
  const ScratchFolder scratch;
  const std::filesystem::path file = scratch.path() / "ranks" / "host.stacks";
  write_stacks();  // to no file
  keep_stacks(file);
  std::atomic<bool> end = false;
  {
    std::jthread writer([&] {
      write_stacks();
      write_stacks();  // too soon after the first one
      end = true;
    });
    wait_in_a_named_function(end);
  }
  const std::string text = read_file(file);
  EXPECT_NE(text.find("wait_in_a_named_function("), std::string::npos) << text;
  const std::string first = "] stacks at ";
  EXPECT_EQ(text.find(first), text.rfind(first)) << text;
  EXPECT_EQ(text.find("does not react"), std::string::npos) << text;
}

}  // namespace
}  // namespace trireme
