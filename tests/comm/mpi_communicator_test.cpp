#include "comm/mpi/mpi_communicator.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <utility>

#include "core/error.hpp"
#include "core/system/process.hpp"
#include "core/tensor.hpp"

namespace trireme::comm {
namespace {

class MpiCommunicatorTest : public testing::Test {
 protected:
  std::unique_ptr<MpiCommunicator> world_ = MpiCommunicator::world();
  const int rank_ = world_->rank();
  const int size_ = world_->size();
};

TEST(Chunks, CoverTheWholeInOrder) {
  std::vector<std::pair<std::size_t, int>> seen;
  for_each_chunk(10, 4, [&](std::size_t offset, int n) { seen.emplace_back(offset, n); });
  const std::vector<std::pair<std::size_t, int>> expected = {{0, 4}, {4, 3}, {7, 3}};
  EXPECT_EQ(seen, expected);
  for_each_chunk(0, 4, [](std::size_t, int) { FAIL() << "nothing to do for no elements"; });
  std::size_t total = 0;
  for_each_chunk(std::size_t{5} << 30, kMaxCount, [&](std::size_t offset, int n) {
    EXPECT_EQ(offset, total);
    EXPECT_GT(n, 0);
    total += static_cast<std::size_t>(n);
  });
  EXPECT_EQ(total, std::size_t{5} << 30);
}

TEST_F(MpiCommunicatorTest, ClockOffsetIsWithinItsError) {
  const double ahead = 1e6 * rank_;  // of the host's clock, which all ranks of this test share
  const ClockOffset offset = clock_offset(*world_, [&] {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double, std::milli>(now).count() + ahead;
  });
  EXPECT_NEAR(offset.ms, -ahead, offset.error_ms + 1e-6);
  EXPECT_EQ(offset.error_ms > 0, rank_ > 0);
  EXPECT_LT(offset.error_ms, 1e3);
}

TEST_F(MpiCommunicatorTest, AllReduceCombines) {
  std::vector<double> values = {1.0 + rank_, -2.0 * rank_};
  world_->all_reduce(values.data(), values.size(), DType::f64, Reduce::sum);
  EXPECT_EQ(values[0], size_ * (size_ + 1) / 2.0);
  EXPECT_EQ(values[1], -1.0 * size_ * (size_ - 1));
  float value = static_cast<float>(rank_);
  world_->all_reduce(&value, 1, DType::f32, Reduce::max);
  EXPECT_EQ(value, static_cast<float>(size_ - 1));
  EXPECT_EQ(world_->all_reduce(5.0 + rank_, Reduce::min), 5.0);
}

TEST_F(MpiCommunicatorTest, HalfTypesAreRoundedOnce) {
  constexpr std::size_t kCount = 3;
  const std::size_t size = static_cast<std::size_t>(size_), own = rank_ * kCount;
  for (const DType dtype : {DType::bf16, DType::f16}) {
    // bf16 would lose the small parts if each addition were rounded.
    std::vector<float> values(size * kCount), expected(values.size()), sums(values.size());
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(i + 1) * (1.0f + 0x1p-7f);
    std::vector<std::uint16_t> elements(values.size());
    const auto store = [&](const std::vector<float>& source) {
      convert_from_float(source.data(), source.size(), dtype, elements.data());
    };
    const auto load = [&](std::vector<float>& target) {
      convert_to_float(elements.data(), target.size(), dtype, target.data());
    };
    store(values);
    load(values);  // as the type stores them
    for (std::size_t i = 0; i < values.size(); ++i)
      expected[i] = static_cast<float>(size_) * values[i];
    store(expected);
    load(expected);

    store(values);
    world_->all_reduce(elements.data(), elements.size(), dtype, Reduce::sum);
    load(sums);
    EXPECT_EQ(sums, expected) << name_of(dtype);
    store(values);
    world_->reduce_scatter(elements.data(), kCount, dtype);
    load(sums);
    for (std::size_t i = own; i < own + kCount; ++i) EXPECT_EQ(sums[i], expected[i]) << i;
  }
}

// Sums of long buffers are those of one MPI call, bit for bit, in a fraction of its memory.
TEST_F(MpiCommunicatorTest, LongReductionsAreThoseOfOneCallInLittleMemory) {
  const std::size_t count = 5 * kMaxReduction + 12345, size = static_cast<std::size_t>(size_);
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = 1.0f / static_cast<float>(3 * (i % 9973) + 7 * static_cast<std::size_t>(rank_) + 1);
  std::vector<float> expected = values, sums = values;
  std::vector<std::uint16_t> narrow(count);
  convert_from_float(values.data(), count, DType::bf16, narrow.data());

  const auto grows = [](const auto& action) {
    std::ofstream("/proc/self/clear_refs") << 5;  // the peak begins again
    const std::int64_t before = process_memory().resident;
    action();
    return process_memory().peak - before;
  };
  const auto most = static_cast<std::int64_t>(4 * kMaxReduction * sizeof(float));
  EXPECT_LT(grows([&] { world_->all_reduce(sums.data(), count, DType::f32, Reduce::sum); }), most);
  const std::size_t part = count / size;
  EXPECT_LT(grows([&] { world_->all_reduce(narrow.data(), count, DType::bf16, Reduce::sum); }),
            most);
  EXPECT_LT(grows([&] { world_->reduce_scatter(narrow.data(), part, DType::bf16); }), most);

  MPI_Allreduce(MPI_IN_PLACE, expected.data(), static_cast<int>(count), MPI_FLOAT, MPI_SUM,
                MPI_COMM_WORLD);
  EXPECT_EQ(std::memcmp(sums.data(), expected.data(), count * sizeof(float)), 0);
}

TEST_F(MpiCommunicatorTest, AllReduceGivesEveryRankTheSameBits) {
  std::vector<float> values(10007);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = 1.0f / static_cast<float>(3 * i + 7 * static_cast<std::size_t>(rank_) + 1);
  world_->all_reduce(values.data(), values.size(), DType::f32, Reduce::sum);
  std::vector<float> of_first = values;
  world_->broadcast(of_first.data(), of_first.size() * sizeof(float), 0);
  EXPECT_EQ(std::memcmp(values.data(), of_first.data(), values.size() * sizeof(float)), 0);
}

TEST_F(MpiCommunicatorTest, ReduceScatterLeavesTheSumInOwnPart) {
  const std::size_t count = 5;
  std::vector<float> data(count * static_cast<std::size_t>(size_));
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(i) + 100.0f * rank_;
  world_->reduce_scatter(data.data(), count, DType::f32);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t at = count * static_cast<std::size_t>(rank_) + i;
    EXPECT_EQ(data[at], static_cast<float>(size_) * static_cast<float>(at) +
                            50.0f * static_cast<float>(size_ * (size_ - 1)))
        << at;
  }
}

TEST_F(MpiCommunicatorTest, AllGatherFillsEveryPart) {
  const std::size_t count = 3;
  std::vector<double> data(count * static_cast<std::size_t>(size_), -1.0);
  for (std::size_t i = 0; i < count; ++i)
    data[count * static_cast<std::size_t>(rank_) + i] = 10.0 * rank_ + static_cast<double>(i);
  world_->all_gather(data.data(), count, DType::f64);
  for (int owner = 0; owner < size_; ++owner)
    for (std::size_t i = 0; i < count; ++i)
      EXPECT_EQ(data[count * static_cast<std::size_t>(owner) + i],
                10.0 * owner + static_cast<double>(i));
}

TEST_F(MpiCommunicatorTest, StartedCollectivesAreDoneImmediately) {
  std::vector<float> data(static_cast<std::size_t>(size_), 1.0f + static_cast<float>(rank_));
  const auto total = static_cast<float>(size_ * (size_ + 1) / 2);
  const auto own = static_cast<std::size_t>(rank_);
  const auto scattered = world_->start_reduce_scatter(data.data(), 1, DType::f32);
  EXPECT_EQ(data[own], total);
  scattered->wait();
  data[own] = static_cast<float>(rank_);
  world_->start_all_gather(data.data(), 1, DType::f32)->wait();
  for (int rank = 0; rank < size_; ++rank)
    EXPECT_EQ(data[static_cast<std::size_t>(rank)], static_cast<float>(rank));
  data[0] = 1.0f;
  world_->start_all_reduce(data.data(), 1, DType::f32, Reduce::sum)->wait();
  EXPECT_EQ(data[0], static_cast<float>(size_));
}

TEST_F(MpiCommunicatorTest, BroadcastCopiesAnyRoot) {
  for (int root = 0; root < size_; ++root) {
    std::string text(7, static_cast<char>('a' + rank_));
    world_->broadcast(text.data(), text.size(), root);
    EXPECT_EQ(text, std::string(7, static_cast<char>('a' + root)));
  }
}

TEST_F(MpiCommunicatorTest, MessagesOfOneTagKeepTheirOrder) {
  const int next = (rank_ + 1) % size_;
  const int previous = (rank_ + size_ - 1) % size_;
  std::vector<int> received(3, -1);
  std::vector<int> sent = {10 * rank_, 10 * rank_ + 1, 10 * rank_ + 2};
  std::vector<std::unique_ptr<Request>> requests;
  requests.push_back(world_->receive(&received[2], sizeof(int), previous, 8));
  for (int i = 0; i < 2; ++i)
    requests.push_back(
        world_->receive(&received[static_cast<std::size_t>(i)], sizeof(int), previous, 7));
  requests.push_back(world_->send(&sent[0], sizeof(int), next, 7));
  requests.push_back(world_->send(&sent[1], sizeof(int), next, 7));
  requests.push_back(world_->send(&sent[2], sizeof(int), next, 8));
  for (auto& request : requests) {
    request->wait();
    request->wait();
  }
  EXPECT_EQ(received, (std::vector<int>{10 * previous, 10 * previous + 1, 10 * previous + 2}));
}

TEST_F(MpiCommunicatorTest, SplitOrdersByKeyAndLeavesOutNegativeColors) {
  const auto part = world_->split(rank_ % 2, -rank_, "parity");
  EXPECT_EQ(part->name(), "parity");
  EXPECT_EQ(part->size(), (size_ + 1 - rank_ % 2) / 2);
  EXPECT_EQ(part->rank(), part->size() - 1 - rank_ / 2);
  const double sum = part->all_reduce(rank_, Reduce::sum);
  EXPECT_EQ(sum,
            rank_ % 2 == 0 ? ((size_ - 1) / 2) * ((size_ - 1) / 2 + 1) : (size_ / 2) * (size_ / 2));
  const auto first = world_->split(rank_ == 0 ? 0 : -1, 0, "first");
  EXPECT_EQ(first != nullptr, rank_ == 0);
}

TEST_F(MpiCommunicatorTest, SumsIntegersModulo64Bits) {
  std::uint64_t value[2] = {~std::uint64_t{0}, std::uint64_t{1} << 62};
  world_->all_reduce_sum(value, 2);
  EXPECT_EQ(value[0], ~std::uint64_t{0} * static_cast<std::uint64_t>(size_));
  EXPECT_EQ(value[1], (std::uint64_t{1} << 62) * static_cast<std::uint64_t>(size_));
}

TEST_F(MpiCommunicatorTest, GathersTextsOfAnyLength) {
  const auto text_of = [](int rank) {
    return std::string(static_cast<std::size_t>(3 * rank), 'x');
  };
  const std::vector<std::string> all = world_->all_gather_text(text_of(rank_));
  ASSERT_EQ(all.size(), static_cast<std::size_t>(size_));
  for (int owner = 0; owner < size_; ++owner)
    EXPECT_EQ(all[static_cast<std::size_t>(owner)], text_of(owner));
}

TEST_F(MpiCommunicatorTest, FailuresNameCallGroupRankAndHost) {
  const int value = 1;
  try {
    world_->send(&value, sizeof value, size_ + 5, 0);
    FAIL() << "a message to a rank that is not there was accepted";
  } catch (const CommunicationError& error) {
    EXPECT_EQ(error.code(), ExitCode::internal);
    const std::string text = error.what();
    for (const std::string& part :
         {std::string("MPI_Isend"), std::string("group 'world'"), "rank " + std::to_string(rank_),
          host_name(), std::string("MPI_ERR_RANK")})
      EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
  }
  EXPECT_EQ(world_->all_reduce(1.0, Reduce::sum), size_);
}

TEST_F(MpiCommunicatorTest, FailuresEndTheJobAsTheWatchdogWould) {
  const auto watchdog = Watchdog::shared();
  watchdog->set_exit_code(ExitCode::stopped_early);
  const int value = 1;
  try {
    world_->send(&value, sizeof value, size_ + 5, 0);
    ADD_FAILURE() << "a message to a rank that is not there was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::stopped_early);
  }
  watchdog->set_exit_code(ExitCode::internal);
}

}  // namespace
}  // namespace trireme::comm
