#include <gtest/gtest.h>

#include <atomic>
#include <cmath>

#include "comm/communicator.hpp"
#include "comm/mpi/mpi_communicator.hpp"
#include "core/error.hpp"
#include "device_memory.hpp"

namespace trireme::comm {
namespace {

constexpr DType kTypes[] = {DType::f32, DType::f64, DType::bf16, DType::f16};

/// Around the circle: activations from each rank to the next, gradients back.
std::vector<Route> ring_routes(int size) {
  std::vector<Route> routes;
  for (int rank = 0; rank < size; ++rank) {
    const int next = (rank + 1) % size;
    routes.push_back({rank, next, kActivationTag});
    routes.push_back({next, rank, kGradientTag});
  }
  return routes;
}

class NcclCommunicatorTest : public testing::Test {
 protected:
  /// What all tests share: NCCL takes its time to start.
  struct Shared {
    std::unique_ptr<MpiCommunicator> world = MpiCommunicator::world();
    cuda::Stream stream;
    std::unique_ptr<Communicator> group =
        make_device_communicator(*world, "test", stream.get(),
                                 {.timeout_seconds = 30.0, .routes = ring_routes(world->size())});
  };
  static void SetUpTestSuite() { shared_ = std::make_unique<Shared>(); }
  static void TearDownTestSuite() { shared_.reset(); }

  /// Small whole numbers, whose sums every type holds: number `i` of rank `rank`.
  static double value(std::size_t i, int rank) { return static_cast<double>(i % 7) + rank; }

  std::vector<double> values(std::size_t count) const {
    std::vector<double> result(count);
    for (std::size_t i = 0; i < count; ++i) result[i] = value(i, rank_);
    return result;
  }
  double sum(std::size_t i) const { return size_ * value(i, 0) + size_ * (size_ - 1) / 2.0; }

  MpiCommunicator& world_ = *shared_->world;
  Communicator& group_ = *shared_->group;
  const cudaStream_t stream_ = shared_->stream.get();
  const int rank_ = world_.rank();
  const int size_ = world_.size();

 private:
  static inline std::unique_ptr<Shared> shared_;
};

TEST_F(NcclCommunicatorTest, KnowsItsPlace) {
  EXPECT_EQ(group_.name(), "test");
  EXPECT_EQ(group_.rank(), rank_);
  EXPECT_EQ(group_.size(), size_);
}

TEST_F(NcclCommunicatorTest, AllReduceCombinesEveryType) {
  for (const DType dtype : kTypes) {
    for (const std::size_t count : {1, 7, 100003}) {
      for (const Reduce op : {Reduce::sum, Reduce::max, Reduce::min}) {
        const DeviceArray array(values(count), dtype, stream_);
        group_.all_reduce(array.data(), count, dtype, op);
        const std::vector<double> found = array.read();
        for (std::size_t i = 0; i < count; ++i) {
          const double expected = op == Reduce::sum   ? sum(i)
                                  : op == Reduce::max ? value(i, size_ - 1)
                                                      : value(i, 0);
          ASSERT_EQ(found[i], expected)
              << name_of(dtype) << "[" << i << "], operation " << static_cast<int>(op);
        }
      }
    }
  }
}

TEST_F(NcclCommunicatorTest, AllReduceGivesEveryRankTheSameBits) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    std::vector<double> numbers(1000003);
    for (std::size_t i = 0; i < numbers.size(); ++i)
      numbers[i] = std::sin(static_cast<double>(i) * (rank_ + 1.1));
    std::vector<std::byte> first_result;
    for (int repeat = 0; repeat < 2; ++repeat) {
      const DeviceArray array(numbers, dtype, stream_);
      group_.all_reduce(array.data(), numbers.size(), dtype, Reduce::sum);
      const std::vector<std::byte> mine = array.bytes();
      std::vector<std::byte> of_rank_0 = mine;
      world_.broadcast(of_rank_0.data(), of_rank_0.size(), 0);
      EXPECT_TRUE(mine == of_rank_0) << name_of(dtype);
      if (repeat == 0) first_result = mine;
      EXPECT_TRUE(mine == first_result) << name_of(dtype) << " differs the second time";
    }
  }
}

TEST_F(NcclCommunicatorTest, ReduceScatterLeavesTheSumInOwnPart) {
  for (const DType dtype : kTypes) {
    for (const std::size_t count : {1, 5, 100003}) {
      for (const bool overlapped : {false, true}) {
        const DeviceArray array(values(count * size_), dtype, stream_);
        if (overlapped)
          group_.start_reduce_scatter(array.data(), count, dtype)->wait();
        else
          group_.reduce_scatter(array.data(), count, dtype);
        const std::vector<double> found = array.read();
        for (std::size_t i = count * rank_; i < count * (rank_ + 1); ++i)
          ASSERT_EQ(found[i], sum(i)) << name_of(dtype) << "[" << i << "]";
      }
    }
  }
}

TEST_F(NcclCommunicatorTest, AllGatherFillsEveryPart) {
  for (const DType dtype : kTypes) {
    for (const std::size_t count : {1, 5, 100003}) {
      for (const bool overlapped : {false, true}) {
        std::vector<double> mine(count * size_, -1.0);
        for (std::size_t i = 0; i < count; ++i) mine[count * rank_ + i] = value(i, rank_);
        const DeviceArray array(mine, dtype, stream_);
        if (overlapped)
          group_.start_all_gather(array.data(), count, dtype)->wait();
        else
          group_.all_gather(array.data(), count, dtype);
        const std::vector<double> found = array.read();
        for (std::size_t i = 0; i < found.size(); ++i)
          ASSERT_EQ(found[i], value(i % count, static_cast<int>(i / count)))
              << name_of(dtype) << "[" << i << "]";
      }
    }
  }
}

TEST_F(NcclCommunicatorTest, BroadcastCopiesAnyRoot) {
  for (int root = 0; root < size_; ++root) {
    const DeviceArray array(values(1001), DType::bf16, stream_);
    group_.broadcast(array.data(), 2 * 1001 - 1, root);
    const std::vector<double> found = array.read();
    for (std::size_t i = 0; i < 1000; ++i) ASSERT_EQ(found[i], value(i, root)) << i;
  }
}

TEST_F(NcclCommunicatorTest, ValuesOfTheHostAreCombined) {
  EXPECT_EQ(group_.all_reduce(1.0 + rank_, Reduce::max), size_);
}

// ---- order

TEST_F(NcclCommunicatorTest, OperationsTakeTheirPlaceInTheStream) {
  const std::size_t count = 1000;
  for (const bool overlapped : {false, true}) {
    DeviceArray array(values(count), DType::f32, stream_);
    TRIREME_CUDA(cudaMemsetAsync(array.data(), 0, count * sizeof(float), stream_));
    // The values arrive late; the sum is overwritten as soon as it was read.
    delay_stream(stream_);
    array.copy_in();
    if (overlapped)
      group_.start_all_reduce(array.data(), count, DType::f32, Reduce::sum)->wait();
    else
      group_.all_reduce(array.data(), count, DType::f32, Reduce::sum);
    const std::vector<double> found = array.read();
    for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(found[i], sum(i)) << i;
  }
}

// One rank's collective waits for the others, which start theirs only when that rank's compute
// stream has gone past it.
TEST_F(NcclCommunicatorTest, StartedCollectivesOverlapWithTheComputeStream) {
  const std::size_t count = 5000;
  const DeviceArray array(values(count), DType::f32, stream_);
  group_.all_reduce(array.data(), count, DType::f32, Reduce::sum);  // connects the ranks
  DeviceArray other(values(count), DType::f32, stream_);
  const auto start = [&] {
    return group_.start_all_reduce(other.data(), count, DType::f32, Reduce::sum);
  };
  std::unique_ptr<Request> request;
  if (rank_ == 0) {
    request = start();
    delay_stream(stream_);
    TRIREME_CUDA(cudaStreamSynchronize(stream_));
  }
  world_.barrier();
  if (rank_ != 0) request = start();
  request->wait();
  request->wait();
  const std::vector<double> found = other.read();
  for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(found[i], sum(i)) << i;
}

TEST_F(NcclCommunicatorTest, BarrierWaitsForTheStream) {
  std::atomic<bool> done = false;
  delay_stream(stream_);
  call_in_stream(stream_, [&] { done = true; });
  group_.barrier();
  EXPECT_TRUE(done);
}

// ---- messages

// Every rank sends everything, both ways around the circle, before it receives anything, and
// receives in another order than was sent: first all of one route, then all of the other.
TEST_F(NcclCommunicatorTest, ManyMessagesBothWaysOverlap) {
  constexpr int kMessages = 40;
  const int next = (rank_ + 1) % size_;
  const int previous = (rank_ + size_ - 1) % size_;
  const auto count = [](int message) { return std::size_t{1} << (message % 18); };
  const auto content = [](int sender, int tag, int message) {
    return 1000.0 * sender + 500.0 * tag + message;
  };
  using P2pRoute = std::pair<int, int>;  // peer and tag
  const P2pRoute sends[] = {{next, kActivationTag}, {previous, kGradientTag}};
  const P2pRoute receives[] = {{next, kGradientTag}, {previous, kActivationTag}};

  // Memory first: taking it may wait for what runs.
  std::vector<std::unique_ptr<DeviceArray>> out, in;
  for (int message = 0; message < kMessages; ++message) {
    for (const auto& [peer, tag] : sends) {
      const std::vector<double> numbers(count(message), content(rank_, tag, message));
      out.push_back(std::make_unique<DeviceArray>(numbers, DType::f32, stream_));
    }
  }
  for (int i = 0; i < 2 * kMessages; ++i) {
    const std::vector<double> numbers(count(i % kMessages), -1.0);
    in.push_back(std::make_unique<DeviceArray>(numbers, DType::f32, stream_));
  }

  std::vector<std::unique_ptr<Request>> requests;
  for (int i = 0; i < 2 * kMessages; ++i) {
    const auto& [peer, tag] = sends[i % 2];
    requests.push_back(group_.send(out[i]->data(), count(i / 2) * sizeof(float), peer, tag));
  }
  for (int i = 0; i < 2 * kMessages; ++i) {
    const auto& [peer, tag] = receives[i / kMessages];
    requests.push_back(
        group_.receive(in[i]->data(), count(i % kMessages) * sizeof(float), peer, tag));
  }
  for (const auto& request : requests) request->wait();

  for (int i = 0; i < 2 * kMessages; ++i) {
    const auto& [peer, tag] = receives[i / kMessages];
    for (const double number : in[i]->read())
      ASSERT_EQ(number, content(peer, tag, i % kMessages))
          << "message " << i % kMessages << " of rank " << peer << ", tag " << tag;
  }
}

// The sender overwrites its buffer as soon as wait() lets it; the receiver reads immediately.
TEST_F(NcclCommunicatorTest, WaitOrdersTheComputeStreamAfterTheMessage) {
  const std::size_t count = 3'000'000;
  const int next = (rank_ + 1) % size_;
  const int previous = (rank_ + size_ - 1) % size_;
  DeviceArray out(std::vector<double>(count, 0.0), DType::f32, stream_);
  const DeviceArray in(std::vector<double>(count, -1.0), DType::f32, stream_);
  for (int round = 0; round < 3; ++round) {
    out.fill(std::vector<double>(count, 10.0 * rank_ + round));
    const auto sent = group_.send(out.data(), count * sizeof(float), next, kActivationTag);
    group_.receive(in.data(), count * sizeof(float), previous, kActivationTag)->wait();
    sent->wait();
    TRIREME_CUDA(cudaMemsetAsync(out.data(), 0, count * sizeof(float), stream_));
    for (const double number : in.read()) ASSERT_EQ(number, 10.0 * previous + round);
  }
}

TEST_F(NcclCommunicatorTest, MessagesNeedARoute) {
  const DeviceArray array({1.0}, DType::f32, stream_);
  try {
    group_.send(array.data(), sizeof(float), (rank_ + 1) % size_, 7);
    FAIL() << "a message without a route was accepted";
  } catch (const InternalError& error) {
    const std::string text = error.what();
    for (const std::string& part :
         {std::string("group 'test', rank ") + std::to_string(rank_), std::string("tag 7")})
      EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
  }
}

// ---- several groups

TEST_F(NcclCommunicatorTest, GroupsOfOneRankNeedNoNccl) {
  const auto alone = world_.split(rank_, 0, "alone");
  const auto group = make_device_communicator(*alone, "alone", stream_, {});
  EXPECT_EQ(group->size(), 1);
  const DeviceArray array(values(3), DType::f32, stream_);
  group->all_reduce(array.data(), 3, DType::f32, Reduce::sum);
  EXPECT_EQ(array.read(), values(3));
}

// Tensor parallelism on the compute stream while the data ranks reduce a bucket.
TEST_F(NcclCommunicatorTest, TwoGroupsWorkConcurrently) {
  const auto data = make_device_communicator(world_, "data", stream_, {});
  const std::size_t count = 1'000'000;
  const DeviceArray bucket(values(count), DType::f32, stream_);
  const DeviceArray activation(values(count), DType::bf16, stream_);
  const auto reduced = data->start_all_reduce(bucket.data(), count, DType::f32, Reduce::sum);
  for (int layer = 0; layer < 10; ++layer)
    group_.all_reduce(activation.data(), count, DType::bf16, Reduce::max);
  reduced->wait();
  const std::vector<double> sums = bucket.read(), largest = activation.read();
  for (std::size_t i = 0; i < count; ++i) {
    ASSERT_EQ(sums[i], sum(i)) << i;
    ASSERT_EQ(largest[i], value(i, size_ - 1)) << i;
  }
}

}  // namespace
}  // namespace trireme::comm
