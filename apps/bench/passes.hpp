// The passes of a model's embedding, blocks and head, timed one after the other.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "comm/communicator.hpp"
#include "deck/deck.hpp"
#include "device/backend.hpp"
#include "model/stage/pipeline_stage.hpp"
#include "plan/cluster/cluster.hpp"

namespace trireme::bench {

/// One rank of a tensor group without its peers: collectives do nothing, so that passes take the
/// time of their kernels.
class SilentGroup final : public comm::Communicator {
 public:
  using Communicator::all_reduce;
  explicit SilentGroup(int size) : size_(size) {}
  const std::string& name() const override { return name_; }
  int rank() const override { return 0; }
  int size() const override { return size_; }
  void all_reduce(void*, std::size_t, DType, comm::Reduce) override {}
  void reduce_scatter(void*, std::size_t, DType) override {}
  void all_gather(void*, std::size_t, DType) override {}
  void broadcast(void*, std::size_t, int) override {}
  void barrier() override {}
  std::unique_ptr<comm::Request> send(const void*, std::size_t, int, int) override {
    return std::make_unique<comm::FinishedRequest>();
  }
  std::unique_ptr<comm::Request> receive(void*, std::size_t, int, int) override {
    return std::make_unique<comm::FinishedRequest>();
  }

 private:
  int size_;
  std::string name_ = "silent";
};

/// The median seconds of each of `passes`, which run one after the other `repeats` times, by the
/// backend's events.
std::vector<double> time_passes(device::Backend& backend, int repeats,
                                const std::vector<std::function<void()>>& passes);

/// `deck` on `tensor` ranks with micro-batches of `micro`, and `layers` blocks.
deck::Deck passes_deck(deck::Deck deck, std::int64_t tensor, std::int64_t micro, bool sequence,
                       int layers);

/// The embedding, the blocks and the head of a model as three stages, each with its weights.
class Stages {
 public:
  Stages(const deck::Deck& deck, std::int64_t vocab, device::Backend& backend, int tensor_rank);

  const grid::Layout& layout() const { return layout_; }
  model::ParameterStore& parameters(int stage) { return *parameters_[stage]; }

 private:
  grid::Layout layout_;
  std::vector<std::unique_ptr<model::ParameterStore>> parameters_;
};

/// Bytes that the three stages of `config` allocate in addition to weights, with one more block.
std::size_t bytes_of(const model::StageConfig& config, const grid::Layout& layout);

/// Times the passes of one micro-batch through the three stages.
plan::Profile time_stages(const deck::Deck& deck, std::int64_t vocab, device::Backend& backend,
                          comm::Communicator& tensor, Stages& stages, int repeats);

}  // namespace trireme::bench
