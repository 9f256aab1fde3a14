#include "sweep/machine.hpp"

#include <gtest/gtest.h>

namespace trireme::sweep {
namespace {

constexpr std::size_t kGibi = std::size_t{1} << 30;

TEST(Machine, RanksWantPlaces) {
  const Machine machine{
      .gpus = {"0", "1"}, .gpu_bytes = 80 * kGibi, .cores = 8, .host_bytes = 64 * kGibi};
  const auto why = [&](Need need, std::optional<int> max_ranks = {}) {
    return why_unfit(machine, need, max_ranks).value_or("");
  };
  EXPECT_EQ(why({2, 80 * kGibi, true}), "");
  EXPECT_EQ(why({4, kGibi, true}), "4 ranks, but 2 GPUs");
  EXPECT_EQ(why({4, kGibi, true}, 4), "");
  EXPECT_EQ(why({2, kGibi, true}, 1), "2 ranks, but --max-ranks 1");
  EXPECT_EQ(why({1, 81 * kGibi, true}), "81.0 GiB a rank, but GPUs of 80.0 GiB");
  EXPECT_EQ(why({8, 8 * kGibi, false}), "");
  EXPECT_EQ(why({8, 9 * kGibi, false}), "72.0 GiB in all, but 64.0 GiB of memory");
  EXPECT_EQ(why({9, kGibi, false}), "9 ranks, but 8 cores");
  EXPECT_EQ(why_unfit({.cores = 2}, {1, kGibi, true}, {}), "1 rank, but 0 GPUs");
}

TEST(Machine, ThisOneHasSomething) {
  const Machine machine = this_machine();
  EXPECT_GE(machine.cores, 1);
  EXPECT_GT(machine.host_bytes, kGibi / 4);
}

TEST(GpuPool, GivesEachGpuToOne) {
  GpuPool pool({"a", "b", "c"});
  const auto first = pool.take(2);
  EXPECT_EQ(first, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(pool.take(2), std::nullopt);
  EXPECT_EQ(pool.take(1), std::vector<std::string>{"c"});
  pool.give_back(*first);
  EXPECT_EQ(pool.take(2), first);
}

}  // namespace
}  // namespace trireme::sweep
