// A GPT in inference on one rank, or on tensor and pipeline ranks: several sequences with a KV
// cache each, whose new tokens go through the model together.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "comm/mpi/groups.hpp"
#include "device/backend.hpp"
#include "model/layers/block.hpp"
#include "model/layers/embedding.hpp"
#include "model/layers/head.hpp"

namespace trireme::generate {

/// The memory of a BatchDecoder, all of which it allocates when made.
struct BatchLimits {
  std::int64_t sequences = 8;      ///< with a cache at the same time
  std::int64_t pass_tokens = 512;  ///< new tokens that go through the model at a time, over all
                                   ///< sequences; at least `sequences`
};

/// New tokens of one sequence.
struct Chunk {
  int slot = 0;           ///< the sequence's cache, from 0 to sequences - 1
  std::int64_t past = 0;  ///< tokens of the sequence before these, whose keys and values are cached
  std::vector<std::int32_t> ids;
  bool wants_logits = true;  ///< of the token that follows the last one
};

/// The model without dropout. With several ranks the first one calls run() and copy(), and all
/// others follow() it; each has the weights of its place in the layout.
class BatchDecoder {
 public:
  /// `parameters` holds the weights of this rank and must outlive this, as must `backend` and
  /// `groups`: those of a layout with one data rank, or null on one rank.
  BatchDecoder(device::Backend& backend, const model::ParameterStore& parameters,
               const model::ModelSpec& spec, const BatchLimits& limits,
               comm::Groups* groups = nullptr);
  BatchDecoder(const BatchDecoder&) = delete;
  BatchDecoder& operator=(const BatchDecoder&) = delete;

  /// The maximum number of tokens of a sequence.
  std::int64_t capacity() const { return spec_.embedding.positions; }
  std::int64_t vocab() const { return spec_.vocab; }
  const BatchLimits& limits() const { return limits_; }

  /// Runs the chunks, of different slots. Returns the logits [vocab] of each chunk that wants them,
  /// in turn, on the first rank; valid until the next call.
  std::span<const std::vector<double>> run(const std::vector<Chunk>& chunks);

  /// Copies caches: pairs of slots, from and to; no slot that
  /// is copied to is also copied from.
  void copy(const std::vector<std::pair<int, int>>& slots);

  /// Tells the other ranks that this one is still there, so that they do not time out.
  void keep_alive();
  /// Ends follow() on the other ranks. The last call.
  void stop();
  /// Takes part in what the first rank does, until it stops.
  void follow();

 private:
  enum class Command : std::int64_t { run, copy, keep_alive, stop };
  struct Stage {
    std::optional<model::Embedding> embedding;
    std::vector<model::TransformerBlock> blocks;
    std::optional<model::Head> head;
  };
  struct Scratch {
    std::int32_t* ids = nullptr;
    std::int32_t* positions = nullptr;
    Tensor stream;  ///< [T, 1, h]
    model::Embedding::Activations embedding;
    std::vector<model::BlockActivations> blocks;
    model::LayerWorkspace workspace;
  };
  struct HeadScratch {
    Tensor last;  ///< [B, 1, h]: the stream of the tokens whose logits are wanted
    model::Head::Activations head;
    Tensor gathered;  ///< [t, B, V / t]
  };

  bool leads() const { return !groups_ || groups_->world->rank() == 0; }
  bool alone() const { return !groups_ || groups_->world->size() == 1; }
  comm::Communicator& tensor() { return groups_ ? *groups_->tensor : serial_; }
  model::LayerSizes sizes(std::int64_t tokens) const;
  Scratch take_scratch(model::Arena& arena, const model::LayerSizes& sizes) const;
  HeadScratch take_head(model::Arena& arena, const model::LayerSizes& sizes) const;
  void allocate();
  Tensor cache_of(const Tensor& all, int slot) const { return all.rows(slot, 1); }

  /// Sends a command and its numbers to the other ranks; receives one there.
  void send(Command command, const std::vector<std::int64_t>& numbers);
  Command receive(std::vector<std::int64_t>& numbers);
  void run_stage(const std::vector<Chunk>& chunks);
  void copy_caches(const std::vector<std::pair<int, int>>& slots);
  void compute_logits(const Tensor& stream, const std::vector<Chunk>& chunks);
  /// Moves the logits from the last stage to the first rank.
  void move_logits(std::size_t count);

  device::Backend& backend_;
  comm::SerialCommunicator serial_;
  comm::Groups* groups_;
  model::ModelSpec spec_;
  BatchLimits limits_;
  DType dtype_;
  Stage stage_;
  int first_layer_ = 0;  ///< of this rank's blocks
  device::Buffer scratch_memory_, head_memory_, cache_memory_, rotary_memory_;
  Tensor rotary_;                      ///< LayerContext::rotary
  std::vector<Tensor> keys_, values_;  ///< [slots, kv_heads / t, positions, head_dim] of each block
  std::vector<std::vector<double>> logits_;
};

}  // namespace trireme::generate
