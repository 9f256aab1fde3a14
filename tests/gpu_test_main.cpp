// main() of the tests that need a GPU: without one they are skipped, loudly, and never pass.
#include <gtest/gtest.h>

#include <cstdio>

#include "device/backend.hpp"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (trireme::device::visible_gpus().empty()) {
    std::printf("SKIPPED: these tests need a GPU, and %s\n", trireme::device::why_no_gpu().c_str());
    return 77;
  }
  return RUN_ALL_TESTS();
}
