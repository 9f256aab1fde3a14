// Messages through peer memory. Skipped where the GPUs of the ranks do not reach each other.
#include "peer_testing.hpp"

namespace trireme::comm {
namespace {

class PeerRouteTest : public PeerTest {};

/// Routes in both directions between each rank and the next.
NcclOptions both_ways(int size, std::size_t message_bytes) {
  return {.timeout_seconds = 60.0,
          .routes = pipeline_routes(size, /*chunks=*/size > 2 ? 2 : 1),
          .message_bytes = message_bytes};
}

// Each rank sends to the next and to the previous rank in parallel, many times without the host, of
// different lengths, the last larger than the mailbox, while some come late.
TEST_F(PeerRouteTest, MessagesArriveInOrder) {
  const std::size_t most = 1'000'003;
  const auto group =
      make_device_communicator(world_, "messages", stream_, both_ways(size_, most * sizeof(float)));
  const bool up = rank_ + 1 < size_, down = rank_ > 0;
  for (const std::size_t count : {std::size_t{1}, std::size_t{4096}, most, 2 * most + 7}) {
    constexpr int kRounds = 12;
    std::vector<std::unique_ptr<DeviceArray>> sent, from_below, from_above;
    std::vector<std::unique_ptr<Request>> requests;
    for (int round = 0; round < kRounds; ++round) {
      sent.push_back(std::make_unique<DeviceArray>(
          std::vector<double>(count, 100.0 * round + rank_), DType::f32, stream_));
      for (auto* into : {&from_below, &from_above})
        into->push_back(
            std::make_unique<DeviceArray>(std::vector<double>(count, -1.0), DType::f32, stream_));
      if (round % size_ == rank_) delay_stream(stream_);
      const std::size_t bytes = count * sizeof(float);
      if (up)
        requests.push_back(group->send(sent[round]->data(), bytes, rank_ + 1, kActivationTag));
      if (down)
        requests.push_back(group->send(sent[round]->data(), bytes, rank_ - 1, kGradientTag));
      if (down)
        requests.push_back(
            group->receive(from_below[round]->data(), bytes, rank_ - 1, kActivationTag));
      if (up)
        requests.push_back(
            group->receive(from_above[round]->data(), bytes, rank_ + 1, kGradientTag));
    }
    for (const auto& request : requests) request->wait();
    for (int round = 0; round < kRounds; ++round) {
      const std::vector<double> below = from_below[round]->read(),
                                above = from_above[round]->read();
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(below[i], down ? 100.0 * round + rank_ - 1 : -1.0) << round << ", " << i;
        ASSERT_EQ(above[i], up ? 100.0 * round + rank_ + 1 : -1.0) << round << ", " << i;
      }
    }
  }
}

}  // namespace
}  // namespace trireme::comm
