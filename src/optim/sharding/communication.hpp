// Gradient reduction, from each rank's sums over its micro-batches to the whole model's gradient;
// gathering of updated weights; and the buffers that sharded matrices of layers pass through.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "comm/communicator.hpp"
#include "device/backend.hpp"
#include "model/parameters/store.hpp"
#include "optim/sharding/shards.hpp"

namespace trireme::optim {

/// A ParameterBuffer of which each data rank keeps a shard (weights under ZeRO-3, gradients under
/// ZeRO-2), and which holds whole layers in a few buffers in turn: the layer in each of these, and
/// the collectives that read or write it.
class LayerBuffers {
 public:
  /// All must outlive this. With `overlap`, collectives overlap with passes.
  LayerBuffers(device::Backend& backend, const model::Placement& placement,
               const model::ParameterBuffer& memory, comm::Communicator& data, const Shards& shards,
               bool overlap)
      : backend(backend),
        memory(memory),
        data(data),
        shards(shards),
        overlap(overlap),
        contents(memory.buffers()),
        placement_(placement) {}

  /// The layer in a buffer, and the collectives on it that run.
  struct Content {
    Range matrices;
    std::vector<std::unique_ptr<comm::Request>> requests;

    /// Waits for the collectives.
    void wait() {
      for (const auto& request : requests) request->wait();
      requests.clear();
    }
  };
  /// The buffer of the layer whose matrices these are.
  Content& content_of(const Range& matrices) {
    return contents[placement_.layer_at(matrices.begin) % contents.size()];
  }

  /// This rank's part of `bucket` in the layer's buffer, and where it is kept.
  Tensor passing(const Range& bucket) const { return memory.at(owned(bucket)); }
  Tensor kept(const Range& bucket) const {
    return memory.own(owned(bucket), shards.state_offset(bucket));
  }

  device::Backend& backend;
  const model::ParameterBuffer& memory;
  comm::Communicator& data;
  const Shards& shards;
  const bool overlap;
  std::vector<Content> contents;  ///< of each buffer

 private:
  Range owned(const Range& bucket) const { return shards.owned_of(bucket, data.rank()); }

  const model::Placement& placement_;
};

// ---- reduction of gradients

/// ZeRO-2: reduce-scatters the gradients of a layer's matrices after each backward pass through the
/// layer, and keeps the shard that this rank owns. Before a pass, the kept shard is copied into the
/// layer's buffer: over a step each sum has the terms and the type of whole gradients, but another
/// order of terms when there are several micro-batches. Collective over the data ranks, which make
/// the same calls. Source: Rajbhandari et al. (2020), section 5.2.
class LayerGradientScatter {
 public:
  /// All must outlive this. With `overlap`, reductions overlap with the following passes.
  LayerGradientScatter(device::Backend& backend, const model::Placement& placement,
                       const model::ParameterBuffer& gradients, comm::Communicator& data,
                       const Shards& shards, bool overlap)
      : layers_(backend, placement, gradients, data, shards, overlap) {}

  /// Before a pass adds to the gradients of `matrices`, those of one layer.
  void open(const Range& matrices);
  /// After the pass: starts the reduce-scatter.
  void close(const Range& matrices);
  /// Waits for all reductions and keeps their results.
  void finish();

 private:
  /// Waits for the reductions in a buffer and keeps this rank's shard of the result.
  void keep(LayerBuffers::Content& content);
  /// Copies this rank's shard of the layer between its buffer and where it is kept.
  enum class Direction { to_buffer, from_buffer };
  void copy_own(const Range& matrices, Direction direction) const;

  LayerBuffers layers_;
};

/// Sums the gradients of shards that several tensor ranks hold copies of (RowBlock::max_shards):
/// key and value heads where there are more tensor ranks than such heads. One all-reduce over the
/// tensor group with a slot for each shard, zero on ranks that do not hold it, needs no group for
/// each shard; the messages are small, since a parameter that is copied has few shards.
class CopiedGradients {
 public:
  /// All must outlive it. `tensor` may be null where no shard is copied; throws InternalError if it
  /// is null and one is.
  CopiedGradients(device::Backend& backend, model::ParameterStore& parameters,
                  comm::Communicator* tensor, const Shards& shards, int data_rank);
  /// Bytes that this allocates.
  static std::size_t planned_bytes(const model::Placement& placement, int tensor_ranks,
                                   const Precision& precision);

  /// Sums the gradients of the owned shard, after the reduction over the data ranks. Collective
  /// over the tensor group.
  void sum();

 private:
  /// Of elements of which each shard has as many, in `copies`.
  void sum(const Tensor& gradient, int copies);

  device::Backend& backend_;
  model::ParameterStore& parameters_;
  comm::Communicator* tensor_;
  const Shards& shards_;
  int data_rank_;
  device::Buffer slots_;  ///< kMaxElements for each shard; null where no shard is copied
};

/// The groups that an optimizer communicates over.
struct OptimizerGroups {
  comm::Communicator& world;
  comm::Communicator& data;  ///< ranks with the same shard of the model
  /// First and last stage, if they differ and this rank is on one of them, else null; rank 0 is the
  /// first stage.
  comm::Communicator* embedding;
  /// The tensor ranks under sequence parallelism, else null.
  comm::Communicator* sequence_parallel = nullptr;
  /// The tensor ranks; null only where they hold no copies of shards (RowBlock::max_shards).
  comm::Communicator* tensor = nullptr;
};

/// Bytes of the staging buffer through which copy engines reduce-scatter gradients: pieces of it
/// take far longer than a copy takes to begin.
inline constexpr std::size_t kReductionStaging = std::size_t{32} << 20;

/// Sums gradients bucket by bucket over the data ranks: by all-reduce, or with several shards by
/// reduce-scatter (ZeRO-1). Before that it sums, over the tensor ranks, gradients that sequence
/// parallelism leaves as partial sums, and the tied embedding over first and last stage. Sharded
/// gradients of matrices (ZeRO-2) are scattered after each pass instead. Copies of shards are
/// summed last.
class GradientReducer {
 public:
  /// All must outlive it. With `overlap`, a bucket is reduced as soon as it is complete, overlapped
  /// with the passes that follow.
  GradientReducer(device::Backend& backend, model::ParameterStore& parameters,
                  const OptimizerGroups& groups, const Shards& shards, bool overlap);

  /// As ParameterHooks.
  void before_gradient(const Range& matrices);
  /// Collective as finish().
  void gradient_ready(const Range& matrices, bool complete);
  /// Reduces the remaining buckets and waits for all. With several shards only the owned one of
  /// each bucket is valid afterwards. Collective over the data, embedding and tensor groups.
  void finish();

 private:
  /// The number of buckets that a step reduces.
  std::size_t buckets_to_reduce() const;
  /// Starts the reduction of those from element `begin` on that were not started.
  void start(std::int64_t begin);
  void sum_tied_embedding();
  /// Sums over the tensor ranks the gradients in `bucket` that are of each rank's positions only.
  void sum_sequence_parallel(const Range& bucket);

  model::ParameterStore& parameters_;
  OptimizerGroups groups_;
  const Shards& shards_;
  bool overlap_;
  std::optional<LayerGradientScatter> scatter_;  ///< ZeRO-2
  CopiedGradients copied_;
  device::Buffer staging_;  ///< kReductionStaging; null where data ranks do not register buffers
  std::unique_ptr<comm::RegisteredBuffer> registered_gradients_, registered_staging_;
  std::vector<Range>
      sequence_ranges_;        ///< of the flat buffers, ascending: Parameter::sequence_parallel
  std::size_t unreduced_ = 0;  ///< the first buckets, whose reduction was not started
  std::vector<std::unique_ptr<comm::Request>> requests_;
};

// ---- gathering of weights, before passes read what each data rank updated

/// ZeRO-3: all-gathers the matrices of a layer, of which each data rank keeps a shard, into the
/// layer's buffer before passes read them; they stay until another layer uses the buffer.
/// Collective over the data ranks, which make the same calls. Source: Rajbhandari et al. (2020),
/// section 5.3.
class LayerWeightGather {
 public:
  /// All must outlive this. With `overlap`, the gather of the next layer overlaps with a pass.
  LayerWeightGather(device::Backend& backend, const model::Placement& placement,
                    const model::ParameterBuffer& weights, comm::Communicator& data,
                    const Shards& shards, bool overlap)
      : layers_(backend, placement, weights, data, shards, overlap) {}

  /// Before a pass reads the weights of `matrices`, those of one layer: gathers them and waits.
  void gather(const Range& matrices);
  /// With `overlap`, starts to gather `matrices`, unless that overwrites the buffer of `in_use`.
  /// Either may be empty.
  void prefetch(const Range& matrices, const Range& in_use);
  /// Marks all buffers as stale: the kept shards are about to change.
  void invalidate();

 private:
  void start(const Range& matrices);

  LayerBuffers layers_;
};

/// Gathers updated buckets over the data ranks (ZeRO-1), and copies the tied embedding to the last
/// stage. Sharded weights of matrices (ZeRO-3) are gathered layer by layer before passes.
class WeightGatherer {
 public:
  /// All must outlive it; `embedding` as in OptimizerGroups. With `overlap`, gathers are overlapped
  /// with updates and with the passes that follow.
  WeightGatherer(device::Backend& backend, model::ParameterStore& parameters,
                 comm::Communicator& data, comm::Communicator* embedding, const Shards& shards,
                 bool overlap);

  /// Starts to gather bucket `index`, whose owned part was updated. Collective over the data
  /// ranks.
  void updated(std::size_t index);
  /// After the last bucket: waits for all gathers, or with `overlap` leaves that to before_use().
  /// Collective over the data and embedding groups.
  void finish_update();
  /// As ParameterHooks. Collective over the data ranks under ZeRO-3.
  void before_use(const Range& range, const Range& next);

 private:
  /// Waits for the running gathers of buckets with elements in `range`.
  void wait_for(const Range& range);

  model::ParameterStore& parameters_;
  comm::Communicator& data_;
  comm::Communicator* embedding_;
  const Shards& shards_;
  bool overlap_;
  std::unique_ptr<comm::RegisteredBuffer> registered_;    ///< the weights
  std::optional<LayerWeightGather> layers_;               ///< ZeRO-3
  std::vector<std::unique_ptr<comm::Request>> requests_;  ///< by bucket; null when waited for
};

}  // namespace trireme::optim
