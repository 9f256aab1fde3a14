// Collectives through peer memory. Skipped where the GPUs of the ranks do not reach each other.
#include <cmath>

#include "peer_testing.hpp"

namespace trireme::comm {
namespace {

constexpr DType kTypes[] = {DType::f32, DType::f64, DType::bf16, DType::f16};
/// Elements of a part: one block and less, and more than all blocks move at a time.
constexpr std::size_t kCounts[] = {8, 4096, 100'008, 3'000'008};

class PeerExchangeTest : public PeerTest {};

TEST_F(PeerExchangeTest, ReduceScatterLeavesTheSumInOwnPart) {
  for (const DType dtype : kTypes) {
    for (const std::size_t count : kCounts) {
      for (const bool overlapped : {false, true}) {
        const SharedArray data(group_, values(count * size_), dtype, stream_);
        if (overlapped)
          group_.start_reduce_scatter(data.array.data(), count, dtype)->wait();
        else
          group_.reduce_scatter(data.array.data(), count, dtype);
        const std::vector<double> found = data.array.read();
        for (std::size_t i = count * rank_; i < count * (rank_ + 1); ++i)
          ASSERT_EQ(found[i], sum(i)) << name_of(dtype) << "[" << i << "] of " << count;
      }
    }
  }
}

// The terms are read as a kernel would, each time after another rank came late.
TEST_F(PeerExchangeTest, TermsOfAReduceScatterLieWhereTheyTell) {
  int round = 0;
  for (const DType dtype : kTypes) {
    for (const std::size_t count : kCounts) {
      const SharedArray data(group_, values(count * size_), dtype, stream_);
      if (round++ % size_ == rank_) delay_stream(stream_);
      PeerTerms terms;
      group_.reduce_scatter_terms(data.array.data(), count, dtype, terms);
      ASSERT_EQ(terms.count, size_);
      for (int peer = 0; peer < size_; ++peer) {
        const DeviceArray term(std::vector<double>(count), dtype, stream_);
        TRIREME_CUDA(cudaMemcpyAsync(term.data(), terms.terms[peer], count * size_of(dtype),
                                     cudaMemcpyDefault, stream_));
        const std::vector<double> found = term.read();
        for (std::size_t i = 0; i < count; ++i)
          ASSERT_EQ(found[i], value(count * rank_ + i, peer)) << name_of(dtype) << "[" << i << "]";
      }
      group_.barrier();
    }
  }
  for (const std::size_t count : {1, 5, 7}) {  // no whole vectors: the sum
    const SharedArray data(group_, values(count * size_), DType::bf16, stream_);
    PeerTerms terms;
    group_.reduce_scatter_terms(data.array.data(), count, DType::bf16, terms);
    ASSERT_FALSE(terms);
    const std::vector<double> found = data.array.read();
    for (std::size_t i = count * rank_; i < count * (rank_ + 1); ++i) EXPECT_EQ(found[i], sum(i));
  }
}

TEST_F(PeerExchangeTest, AllGatherFillsEveryPart) {
  for (const DType dtype : kTypes) {
    for (const std::size_t count : kCounts) {
      for (const bool overlapped : {false, true}) {
        const SharedArray data(group_, own_values(count), dtype, stream_);
        if (overlapped)
          group_.start_all_gather(data.array.data(), count, dtype)->wait();
        else
          group_.all_gather(data.array.data(), count, dtype);
        const std::vector<double> found = data.array.read();
        for (std::size_t i = 0; i < found.size(); ++i)
          ASSERT_EQ(found[i], value(i % count, static_cast<int>(i / count)))
              << name_of(dtype) << "[" << i << "] of " << count;
      }
    }
  }
}

TEST_F(PeerExchangeTest, PartsOfAnAllGatherRaiseTheirFlags) {
  bool by_parts = false;
  for (const std::size_t count : kCounts)
    for (int round = 0; round < 3; ++round) {
      const SharedArray data(group_, own_values(count, round), DType::bf16, stream_);
      PartArrivals arrivals;
      const auto request = group_.start_all_gather(data.array.data(), count, DType::bf16, arrivals);
      if (arrivals) {
        by_parts = true;
        ASSERT_EQ(arrivals.parts, size_);
        ASSERT_EQ(arrivals.own, rank_);
        cuda::await_parts(stream_, arrivals);  // in place of a GEMM
      }
      const std::vector<double> found = data.array.read();
      for (std::size_t i = 0; i < found.size(); ++i)
        ASSERT_EQ(found[i], value(i % count, static_cast<int>(i / count)) + round)
            << i << " of " << count;
      request->wait();
      TRIREME_CUDA(cudaStreamSynchronize(stream_));
    }
  EXPECT_TRUE(by_parts);
}

TEST_F(PeerExchangeTest, AllReduceSumsEverything) {
  for (const DType dtype : kTypes) {
    for (const std::size_t part : kCounts) {
      const std::size_t count = part * size_;
      const SharedArray data(group_, values(count), dtype, stream_);
      group_.all_reduce(data.array.data(), count, dtype, Reduce::sum);
      const std::vector<double> found = data.array.read();
      for (std::size_t i = 0; i < count; ++i)
        ASSERT_EQ(found[i], sum(i)) << name_of(dtype) << "[" << i << "] of " << count;
    }
  }
}

TEST_F(PeerExchangeTest, SumsAreTakenInRankOrderAndRoundedOnce) {
  const std::size_t count = 100'000 * size_;
  const auto number = [](std::size_t i, int rank) {
    return static_cast<float>(std::sin(static_cast<double>(i) * (rank + 1.1)) *
                              std::pow(10.0, rank % 4));
  };
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    // What each rank holds, rounded to the type; the sum in fp32; and that rounded.
    std::vector<float> sums(count, 0.0f), rounded(count);
    std::vector<double> mine(count);
    for (int rank = 0; rank < size_; ++rank) {
      for (std::size_t i = 0; i < count; ++i) rounded[i] = number(i, rank);
      std::vector<std::byte> elements(count * size_of(dtype));
      convert_from_float(rounded.data(), count, dtype, elements.data());
      convert_to_float(elements.data(), count, dtype, rounded.data());
      for (std::size_t i = 0; i < count; ++i)
        sums[i] = rank == 0 ? rounded[i] : sums[i] + rounded[i];
      if (rank == rank_) mine.assign(rounded.begin(), rounded.end());
    }
    std::vector<std::byte> expected(count * size_of(dtype));
    convert_from_float(sums.data(), count, dtype, expected.data());

    const SharedArray data(group_, mine, dtype, stream_);
    group_.all_reduce(data.array.data(), count, dtype, Reduce::sum);
    EXPECT_TRUE(data.array.bytes() == expected) << name_of(dtype);
  }
}

TEST_F(PeerExchangeTest, OtherSizesAndOperationsAreRightToo) {
  for (const std::size_t count : {1, 5, 7}) {
    const SharedArray sums(group_, values(count * size_), DType::bf16, stream_);
    group_.reduce_scatter(sums.array.data(), count, DType::bf16);
    const std::vector<double> found = sums.array.read();
    for (std::size_t i = count * rank_; i < count * (rank_ + 1); ++i) EXPECT_EQ(found[i], sum(i));
    const SharedArray parts(group_, own_values(count), DType::bf16, stream_);
    group_.all_gather(parts.array.data(), count, DType::bf16);
    EXPECT_EQ(parts.array.read().back(), value(count - 1, size_ - 1));
  }
  const SharedArray largest(group_, values(800), DType::f32, stream_);
  group_.all_reduce(largest.array.data(), 800, DType::f32, Reduce::max);
  EXPECT_EQ(largest.array.read()[3], value(3, size_ - 1));
}

TEST_F(PeerExchangeTest, TakesAPartOfWhatIsShared) {
  const std::size_t before = 16, count = 4000;
  const SharedArray data(group_, values(before + count * size_ + 8), DType::f32, stream_);
  group_.all_reduce(data.array.data(before), count * size_, DType::f32, Reduce::sum);
  const std::vector<double> found = data.array.read();
  for (std::size_t i = 0; i < found.size(); ++i) {
    const bool inside = i >= before && i < before + count * size_;
    ASSERT_EQ(found[i], inside ? sum(i) : value(i, rank_)) << i;
  }
}

// ---- order

// Each time another rank comes late. All overwrite their buffers right after the operation: those
// ranks that come late must get their data, and no rank may have written too early.
TEST_F(PeerExchangeTest, RanksMayComeLate) {
  const std::size_t count = 400'000;
  const std::size_t bytes = count * size_ * sizeof(float);
  SharedArray data(group_, std::vector<double>(count * size_), DType::f32, stream_);
  const DeviceArray copy(std::vector<double>(count * size_), DType::f32, stream_);
  const auto copy_and_overwrite = [&] {
    TRIREME_CUDA(
        cudaMemcpyAsync(copy.data(), data.array.data(), bytes, cudaMemcpyDeviceToDevice, stream_));
    TRIREME_CUDA(cudaMemsetAsync(data.array.data(), 0x7F, bytes, stream_));
  };
  for (int round = 0; round < 4 * size_; ++round) {
    SCOPED_TRACE(round);
    std::vector<double> mine = values(count * size_);
    for (double& number : mine) number += round;
    data.array.fill(mine);
    if (round % size_ == rank_) delay_stream(stream_);
    group_.reduce_scatter(data.array.data(), count, DType::f32);
    copy_and_overwrite();
    std::vector<double> found = copy.read();
    for (std::size_t i = count * rank_; i < count * (rank_ + 1); ++i)
      ASSERT_EQ(found[i], sum(i) + size_ * round) << i;

    data.array.fill(own_values(count, round));
    if (round % size_ == rank_) delay_stream(stream_);
    group_.all_gather(data.array.data(), count, DType::f32);
    copy_and_overwrite();
    found = copy.read();
    for (std::size_t i = 0; i < found.size(); ++i)
      ASSERT_EQ(found[i], value(i % count, static_cast<int>(i / count)) + round) << i;
  }
}

// Many operations one after the other without the host in between, each one's input the one's
// before.
TEST_F(PeerExchangeTest, FollowEachOtherWithoutTheHost) {
  const std::size_t count = 50'000;
  const SharedArray data(group_, std::vector<double>(count * size_, 1.0), DType::f64, stream_);
  constexpr int kRounds = 100;  // 8^100 is below the largest double, and a power of two
  for (int round = 0; round < kRounds; ++round) {
    group_.reduce_scatter(data.array.data(), count, DType::f64);
    group_.all_gather(data.array.data(), count, DType::f64);
  }
  const double expected = std::pow(static_cast<double>(size_), kRounds);
  for (const double number : data.array.read()) ASSERT_EQ(number, expected);
}

// Overlapped operations use other flags than those of the compute stream.
TEST_F(PeerExchangeTest, TwoOperationsRunConcurrently) {
  const std::size_t count = 1'000'000;
  for (int round = 0; round < 10; ++round) {
    const SharedArray sums(group_, values(count * size_), DType::f32, stream_);
    const SharedArray parts(group_, own_values(count), DType::bf16, stream_);
    const auto reduced = group_.start_reduce_scatter(sums.array.data(), count, DType::f32);
    if (round % size_ == rank_) delay_stream(stream_);
    group_.all_gather(parts.array.data(), count, DType::bf16);
    reduced->wait();
    const std::vector<double> found = sums.array.read(), gathered = parts.array.read();
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_EQ(found[count * rank_ + i], sum(count * rank_ + i)) << i;
      ASSERT_EQ(gathered[count * (size_ - 1) + i], value(i, size_ - 1)) << i;
    }
  }
}

// ---- copies that overlap with the compute stream

/// An array followed by a staging buffer of the group.
struct StagedArray {
  StagedArray(Communicator& group, std::vector<double> values, DType dtype, cudaStream_t stream)
      : count(values.size()), all(group, twice(std::move(values)), dtype, stream) {
    const std::size_t bytes = count * size_of(dtype);
    group.set_staging_buffer(static_cast<std::byte*>(all.array.data()) + bytes, bytes,
                             min_reduce_scatter_bytes(group.size()));
  }
  static std::vector<double> twice(std::vector<double> values) {
    values.resize(2 * values.size(), -2.0);
    return values;
  }

  std::size_t count;
  SharedArray all;
};

TEST_F(PeerExchangeTest, CopiesSumLikeTheKernels) {
  for (const DType dtype : kTypes) {
    for (const std::size_t count : kCounts) {
      const std::size_t all = count * size_;
      const StagedArray parts(group_, values(all), dtype, stream_);
      group_.start_reduce_scatter(parts.all.array.data(), count, dtype)->wait();
      const std::vector<double> scattered = parts.all.array.read();
      for (std::size_t i = count * rank_; i < count * (rank_ + 1); ++i)
        ASSERT_EQ(scattered[i], sum(i)) << name_of(dtype) << "[" << i << "] of " << count;

      const StagedArray whole(group_, values(all), dtype, stream_);
      group_.start_all_reduce(whole.all.array.data(), all, dtype, Reduce::sum)->wait();
      const std::vector<double> reduced = whole.all.array.read();
      for (std::size_t i = 0; i < all; ++i)
        ASSERT_EQ(reduced[i], sum(i)) << name_of(dtype) << "[" << i << "] of " << count;
    }
  }
}

// The scratch memory is written again only when what it held has been read, however late a rank is,
// and the data when it has been sent.
TEST_F(PeerExchangeTest, CopiesWaitForRanksThatComeLate) {
  // 34 MiB on four ranks: smaller sums go by kernels there.
  const std::size_t count = 1'100'008, all = count * size_;
  const StagedArray data(group_, std::vector<double>(all, 1.0), DType::f64, stream_);
  constexpr int kRounds = 40;
  for (int round = 0; round < kRounds; ++round) {
    if (round % size_ == rank_ && round % 8 < 3) delay_stream(stream_);
    group_.start_reduce_scatter(data.all.array.data(), count, DType::f64)->wait();
    group_.all_gather(data.all.array.data(), count, DType::f64);
  }
  const double expected = std::pow(static_cast<double>(size_), kRounds);
  const std::vector<double> found = data.all.array.read();
  for (std::size_t i = 0; i < all; ++i) ASSERT_EQ(found[i], expected) << i;
}

// A part that fills its slot of the staging buffer several times, but not the last time.
TEST_F(PeerExchangeTest, CopiesGoInPiecesThroughASmallStagingBuffer) {
  const std::size_t count = 100'000, all = count * size_, staging = 64 * 1024;
  std::vector<double> both = values(all);
  both.resize(all + staging / sizeof(float), -2.0);
  for (const bool scatters : {true, false}) {
    const SharedArray data(group_, both, DType::f32, stream_);
    group_.set_staging_buffer(data.array.data(all), staging, /*min_bytes=*/0);
    if (scatters)
      group_.start_reduce_scatter(data.array.data(), count, DType::f32)->wait();
    else
      group_.start_all_reduce(data.array.data(), all, DType::f32, Reduce::sum)->wait();
    const std::vector<double> found = data.array.read();
    for (std::size_t i = scatters ? count * rank_ : 0; i < (scatters ? count * (rank_ + 1) : all);
         ++i)
      ASSERT_EQ(found[i], sum(i)) << i;
  }
}

// What a rank has queued to clear its memory, as backends do, is done before others write there,
// which need not wait for its stream.
/// The operations that `work` enqueues on a stream, captured.
class CapturedStream {
 public:
  CapturedStream(cudaStream_t stream, const std::function<void()>& work) : stream_(stream) {
    cudaGraph_t graph = nullptr;
    TRIREME_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    work();
    TRIREME_CUDA(cudaStreamEndCapture(stream, &graph));
    TRIREME_CUDA(cudaGraphInstantiate(&executable_, graph, 0));
    TRIREME_CUDA(cudaGraphDestroy(graph));
  }
  ~CapturedStream() { cudaGraphExecDestroy(executable_); }
  CapturedStream(const CapturedStream&) = delete;
  CapturedStream& operator=(const CapturedStream&) = delete;

  void launch() { TRIREME_CUDA(cudaGraphLaunch(executable_, stream_)); }

 private:
  cudaStream_t stream_;
  cudaGraphExec_t executable_ = nullptr;
};

// Two graphs in turn and operations that are in none, with another rank late each time.
TEST_F(PeerExchangeTest, GraphsExchangeWhatTheirLaunchesFind) {
  constexpr std::size_t kCount = 4096;
  SharedArray sums(group_, values(kCount * size_), DType::f32, stream_);
  SharedArray parts(group_, own_values(kCount), DType::bf16, stream_);
  std::unique_ptr<CapturedCollectives> reduction, gather;
  CapturedStream reduction_graph(stream_, [&] {
    reduction = group_.capture([&] {
      const std::size_t half = kCount * size_ / 2;
      group_.all_reduce(sums.array.data(), half, DType::f32, Reduce::sum);
      group_.start_all_reduce(sums.array.data(half), half, DType::f32, Reduce::sum)->wait();
    });
  });
  CapturedStream gather_graph(stream_, [&] {
    gather = group_.capture([&] {
      PartArrivals arrivals;
      group_.start_all_gather(parts.array.data(), kCount, DType::bf16, arrivals)->wait();
      EXPECT_FALSE(arrivals);
    });
  });
  ASSERT_TRUE(reduction && gather);
  for (int round = 0; round < 12; ++round) {
    sums.array.fill(values(kCount * size_));
    parts.array.fill(own_values(kCount, round));
    group_.barrier();  // nothing is written to a rank's part before the rank has filled all
    if (round % size_ == rank_) delay_stream(stream_);
    reduction->run([&] { reduction_graph.launch(); });
    if (round % 3 == 0) group_.all_reduce(sums.array.data(), kCount, DType::f32, Reduce::sum);
    gather->run([&] { gather_graph.launch(); });
    const std::vector<double> summed = sums.array.read(), gathered = parts.array.read();
    for (std::size_t i = 0; i < summed.size(); ++i) {
      ASSERT_EQ(summed[i], sum(i) * (round % 3 == 0 && i < kCount ? size_ : 1)) << i;
      ASSERT_EQ(gathered[i], value(i % kCount, static_cast<int>(i / kCount)) + round) << i;
    }
  }
}

// What is not registered is exchanged by NCCL, which is not captured.
TEST_F(PeerExchangeTest, GraphsOfOtherMemoryAreRefused) {
  const DeviceArray data(values(4096), DType::f32, stream_);
  for (const bool overlapped : {false, true}) {
    std::unique_ptr<CapturedCollectives> captured;
    const CapturedStream graph(stream_, [&] {
      captured = group_.capture([&] {
        if (overlapped)
          group_.start_all_reduce(data.data(), 4096, DType::f32, Reduce::sum)->wait();
        else
          group_.all_reduce(data.data(), 4096, DType::f32, Reduce::sum);
      });
    });
    EXPECT_FALSE(captured);
  }
  group_.all_reduce(data.data(), 4096, DType::f32, Reduce::sum);
  const std::vector<double> found = data.read();
  for (std::size_t i = 0; i < found.size(); ++i) ASSERT_EQ(found[i], sum(i)) << i;
}

TEST_F(PeerExchangeTest, MemoryIsSharedOnceItIsFilled) {
  const std::size_t count = 1024, all = count * size_, bytes = all * sizeof(float);
  for (int late = 0; late < size_; ++late) {
    const DeviceArray array(StagedArray::twice(values(all)), DType::f32, stream_);
    void* const scratch = array.data(all);
    if (late == rank_) delay_stream(stream_);
    TRIREME_CUDA(cudaMemsetAsync(scratch, 0, bytes, stream_));
    const auto shared = group_.register_buffer(array.data(), 2 * bytes);
    group_.set_staging_buffer(scratch, bytes, /*min_bytes=*/0);
    group_.start_reduce_scatter(array.data(), count, DType::f32)->wait();
    const std::vector<double> found = array.read();
    for (std::size_t i = count * rank_; i < count * (rank_ + 1); ++i)
      ASSERT_EQ(found[i], sum(i)) << i << ", rank " << late << " late";
  }
}

TEST_F(PeerExchangeTest, TheStagingBufferEndsWithItsRegistration) {
  for (int round = 0; round < 5; ++round) {
    {
      const StagedArray data(group_, values(8 * 1024 * size_), DType::f32, stream_);
      group_.start_reduce_scatter(data.all.array.data(), 8 * 1024, DType::f32)->wait();
      EXPECT_EQ(data.all.array.read()[8 * 1024 * rank_ + 5], sum(8 * 1024 * rank_ + 5));
    }
    const SharedArray data(group_, values(8 * 1024 * size_), DType::f32, stream_);
    group_.start_reduce_scatter(data.array.data(), 8 * 1024, DType::f32)->wait();
    EXPECT_EQ(data.array.read()[8 * 1024 * rank_ + 5], sum(8 * 1024 * rank_ + 5));
  }
}

// ---- life

TEST_F(PeerExchangeTest, MemoryIsFreedWhenItsRegistrationEnds) {
  const std::size_t count = 8 * 1024;
  for (int round = 0; round < 20; ++round) {
    SharedArray data(group_, values(count * size_), DType::f32, stream_);
    group_.all_reduce(data.array.data(), count * size_, DType::f32, Reduce::sum);
    if (round % 2 == 1) {  // through NCCL
      data.shared.reset();
      data.array.fill(values(count * size_));
      group_.all_reduce(data.array.data(), count * size_, DType::f32, Reduce::sum);
    }
    EXPECT_EQ(data.array.read()[5], sum(5)) << round;
  }
}

TEST_F(PeerExchangeTest, GroupsThatDidNotAskForItShareNothing) {
  const auto plain = make_device_communicator(world_, "plain", stream_, {});
  const SharedArray data(*plain, values(8), DType::f32, stream_);
  EXPECT_EQ(data.shared, nullptr);
}

}  // namespace
}  // namespace trireme::comm
