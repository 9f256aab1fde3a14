#include "train/training_log.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "comm/mpi/mpi_communicator.hpp"
#include "core/clock.hpp"

namespace trireme::train {
namespace {

using device::Phase;

class MeasurementsTest : public testing::Test {
 protected:
  comm::Groups groups_ =
      comm::make_groups(comm::MpiCommunicator::world(),
                        {.data = comm::MpiCommunicator::world()->size(), .partition = {1}});
  const std::unique_ptr<device::Backend> backend_ = device::make_host_backend(1);
};

TEST_F(MeasurementsTest, TimersSpanTheRanksThatRanThem) {
  device::Timers timers(*backend_);
  const int rank = groups_.world->rank(), last = groups_.world->size() - 1;
  const auto work = [&](Phase phase, int ms) {
    timed(&timers, phase, [&] { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); });
  };
  work(Phase::forward, 20 + 60 * rank);
  if (rank == last) work(Phase::batch, 40);
  const Phase phases[] = {Phase::forward, Phase::backward, Phase::batch};
  const auto [iteration, values, rank_ms] = timers_event(timers, phases, 2.0, *groups_.world);
  ASSERT_EQ(values.size(), 2u) << "no rank ran a backward pass";
  EXPECT_EQ(values[0].name, "forward-compute");
  EXPECT_GE(values[0].min_ms, 10.0);
  EXPECT_GE(values[0].max_ms, 10.0 + 30.0 * last);
  if (last > 0) {
    EXPECT_LT(values[0].min_ms, values[0].max_ms);
  }
  EXPECT_EQ(values[1].name, "batch-generator");
  EXPECT_GE(values[1].min_ms, 20.0) << "the ranks that make no batch do not count";
  ASSERT_EQ(static_cast<int>(rank_ms.size()), last + 1);
  for (int each = 0; each <= last; ++each) EXPECT_GE(rank_ms[each], 10.0 + 30.0 * each);
  EXPECT_DOUBLE_EQ(*std::ranges::max_element(rank_ms), values[0].max_ms);
  EXPECT_TRUE(timers_event(timers, phases, 2.0, *groups_.world).timers.empty());
  const Phase evaluation[] = {Phase::evaluate};
  EXPECT_TRUE(timers_event(timers, evaluation, 1.0, *groups_.world).rank_ms.empty());
}

TEST_F(MeasurementsTest, ARanksTimeLeavesOutWhatItWaitsForOthersInItsPasses) {
  device::Timers timers(*backend_);
  const int rank = groups_.world->rank(), ranks = groups_.world->size();
  const double before = comm::seconds_in_mpi();
  const Stopwatch watch;
  timed(&timers, Phase::backward, [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(rank == 0 ? 300 : 20));
    groups_.data->start_all_reduce(std::vector<float>(64).data(), 64, DType::f32,
                                   comm::Reduce::sum);
  });
  const double pass_ms = 1e3 * watch.seconds();  // and a little more
  const double waiting_ms = 1e3 * (comm::seconds_in_mpi() - before);
  timers.add(Phase::waiting, waiting_ms);
  const Phase phases[] = {Phase::forward, Phase::backward};
  const auto event = timers_event(timers, phases, 1.0, *groups_.world);
  ASSERT_EQ(static_cast<int>(event.rank_ms.size()), ranks);
  EXPECT_GE(event.rank_ms[0], 290.0);
  EXPECT_TRUE(ranks == 1 || waiting_ms > 0.0);
  EXPECT_LE(event.rank_ms[rank], pass_ms - waiting_ms + 1e-3);
  EXPECT_FALSE(timers.take(Phase::waiting)) << "taken with the passes";
}

TEST_F(MeasurementsTest, MemoryIsThatOfTheProcessOnTheHost) {
  const report::MemoryEvent event = memory_in_use(*backend_, groups_);
  EXPECT_EQ(event.gpu_bytes, 0);
  ASSERT_EQ(event.ranks.size(), 1u) << "the other ranks hold copies";
  const report::RankMemory& first = event.ranks[0];
  EXPECT_EQ(first.rank, 0);
  EXPECT_GT(first.allocated, 1 << 20);
  EXPECT_GE(first.max_allocated, first.allocated);
  EXPECT_GT(first.reserved, first.allocated) << "of addresses there are more";
  EXPECT_GE(first.max_reserved, first.reserved);
  EXPECT_GE(event.peak_bytes, first.max_allocated);
}

TEST_F(MeasurementsTest, MemoryIsToldOfEveryPartOfTheModel) {
  const int size = groups_.world->size();
  const comm::Groups parts =
      comm::make_groups(comm::MpiCommunicator::world(), {.tensor = size, .partition = {1}});
  const report::MemoryEvent event = memory_in_use(*backend_, parts);
  ASSERT_EQ(static_cast<int>(event.ranks.size()), size);
  for (int rank = 0; rank < size; ++rank) {
    EXPECT_EQ(event.ranks[rank].rank, rank);
    EXPECT_GT(event.ranks[rank].allocated, 1 << 20);
  }
}

}  // namespace
}  // namespace trireme::train
