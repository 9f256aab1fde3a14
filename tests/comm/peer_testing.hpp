// What the tests of peer memory share: arrays that ranks reach, and the ranks' group.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "comm/communicator.hpp"
#include "comm/mpi/mpi_communicator.hpp"
#include "core/cuda/check.hpp"
#include "device_memory.hpp"

namespace trireme::comm {

/// An array that the ranks of a group reach; `shared` is null where they do not.
struct SharedArray {
  SharedArray(Communicator& group, const std::vector<double>& values, DType dtype,
              cudaStream_t stream)
      : array(values, dtype, stream),
        shared(group.register_buffer(array.data(), values.size() * size_of(dtype))) {}

  DeviceArray array;
  std::unique_ptr<RegisteredBuffer> shared;
};

/// Skips where the GPUs of the ranks do not reach each other.
class PeerTest : public testing::Test {
 protected:
  struct Shared {
    std::unique_ptr<MpiCommunicator> world = MpiCommunicator::world();
    cuda::Stream stream;
    std::unique_ptr<Communicator> group = make_device_communicator(
        *world, "test", stream.get(), {.timeout_seconds = 60.0, .through_peers = true});
    bool reach = SharedArray(*group, {1.0}, DType::f32, stream.get()).shared != nullptr;
  };
  static void SetUpTestSuite() { registered_ = std::make_unique<Shared>(); }
  static void TearDownTestSuite() { registered_.reset(); }
  void SetUp() override {
    if (!registered_->reach)
      GTEST_SKIP() << "the GPUs of these ranks do not reach each other's memory";
  }

  /// Small whole numbers, whose sums every type holds: number `i` of rank `rank`.
  static double value(std::size_t i, int rank) { return static_cast<double>(i % 7) + rank; }
  double sum(std::size_t i) const { return size_ * value(i, 0) + size_ * (size_ - 1) / 2.0; }

  std::vector<double> values(std::size_t count) const {
    std::vector<double> result(count);
    for (std::size_t i = 0; i < count; ++i) result[i] = value(i, rank_);
    return result;
  }
  /// -1, and this rank's values in its own part.
  std::vector<double> own_values(std::size_t count, double shift = 0.0) const {
    std::vector<double> result(count * size_, -1.0);
    for (std::size_t i = 0; i < count; ++i) result[count * rank_ + i] = value(i, rank_) + shift;
    return result;
  }

  MpiCommunicator& world_ = *registered_->world;
  Communicator& group_ = *registered_->group;
  const cudaStream_t stream_ = registered_->stream.get();
  const int rank_ = world_.rank();
  const int size_ = world_.size();

 private:
  static inline std::unique_ptr<Shared> registered_;
};

}  // namespace trireme::comm
