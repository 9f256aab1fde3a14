#include <gtest/gtest.h>
#include <omp.h>
#include <sched.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "device/backend.hpp"

namespace trireme::device {
namespace {

TEST(HostBackend, AllocatesZeroedAlignedMemory) {
  const auto backend = make_host_backend(2);
  EXPECT_EQ(backend->name(), "host");
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{1} << 20}) {
    const Buffer buffer = backend->allocate(bytes, "activations");
    ASSERT_NE(buffer, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.get()) % 256, 0u);
    const char* begin = static_cast<const char*>(buffer.get());
    EXPECT_TRUE(std::all_of(begin, begin + bytes, [](char byte) { return byte == 0; }));
  }
}

TEST(HostBackend, SaysWhatThereIsNoMemoryFor) {
  const auto backend = make_host_backend(1);
  try {
    backend->allocate(std::size_t{1} << 50, "optimizer state");
    FAIL() << "a petabyte was granted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::failure);
    EXPECT_EQ(std::string(error.what()),
              "no memory for optimizer state: the system refused 1.0 PiB");
  }
}

TEST(HostBackend, MovesAndClearsMemory) {
  const auto backend = make_host_backend(1);
  const std::vector<float> values = {1, 2, 3, 4};
  const Buffer first = backend->allocate(16, "test"), second = backend->allocate(16, "test");
  backend->upload(first.get(), values.data(), 16);
  backend->copy(second.get(), first.get(), 16);
  backend->zero({static_cast<float*>(second.get()) + 1, DType::f32, {2}});
  std::vector<float> result(4);
  backend->download(result.data(), second.get(), 16);
  backend->synchronize();
  EXPECT_EQ(result, (std::vector<float>{1, 0, 0, 4}));
}

// A copy is neither made immediately nor at the end alone, and is whole after the end.
TEST(HostBackend, CopiesOverlapWithOtherWork) {
  const auto backend = make_host_backend(1);
  const Buffer memory = backend->allocate(64, "test");
  const Buffer kept = backend->allocate_on_host(64, "test");
  auto* from = static_cast<char*>(memory.get());
  auto* to = static_cast<char*>(kept.get());
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{63}}) {
    std::fill_n(from, 64, 'a');
    std::fill_n(to, 64, 'b');
    backend->start_copy(to, from, bytes);
    EXPECT_EQ(std::count(to, to + 64, 'a'), static_cast<std::ptrdiff_t>(bytes / 2));
    backend->finish_copies();
    EXPECT_EQ(std::string(to, to + 64), std::string(bytes, 'a') + std::string(64 - bytes, 'b'));
    std::fill_n(to, 64, 'c');
    backend->finish_copies();
    EXPECT_EQ(std::count(to, to + 64, 'c'), 64);
  }
}

TEST(HostBackend, RunsOperationsOnItsThreads) {
  const auto backend = make_host_backend(3);
  EXPECT_EQ(omp_get_max_threads(), 3);
  std::vector<float> a = {1, 2, 3, 4}, b = {1, 0, 0, 1}, c(4);
  const Shape square{2, 2};
  backend->gemm({.a = {a.data(), DType::f32, square},
                 .b = {b.data(), DType::f32, square},
                 .c = {c.data(), DType::f32, square}});
  EXPECT_EQ(c, a);
  EXPECT_THROW(make_host_backend(0), InternalError);
}

TEST(ThreadsForRank, SharesTheCoresOfTheMask) {
  unsetenv("OMP_NUM_THREADS");
  cpu_set_t original;
  ASSERT_EQ(sched_getaffinity(0, sizeof original, &original), 0);
  const int cores = CPU_COUNT(&original);
  EXPECT_EQ(threads_for_rank(1), cores);
  EXPECT_EQ(threads_for_rank(cores), 1);
  EXPECT_EQ(threads_for_rank(2 * cores), 1);

  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(sched_getcpu(), &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(threads_for_rank(1), 1);
  ASSERT_EQ(sched_setaffinity(0, sizeof original, &original), 0);
}

TEST(ThreadsForRank, OmpNumThreadsWins) {
  setenv("OMP_NUM_THREADS", "7,2", 1);
  EXPECT_EQ(threads_for_rank(4), 7);
  setenv("OMP_NUM_THREADS", "many", 1);
  EXPECT_GE(threads_for_rank(1), 1);
  unsetenv("OMP_NUM_THREADS");
}

}  // namespace
}  // namespace trireme::device
