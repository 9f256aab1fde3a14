// The model of a checkpoint, read in one process for inference; and a whole GPT on one rank
// without a KV cache: what BatchDecoder is compared with.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/file.hpp"
#include "comm/communicator.hpp"
#include "device/backend.hpp"
#include "grid/layout.hpp"
#include "model/layers/block.hpp"
#include "model/layers/embedding.hpp"
#include "model/layers/head.hpp"
#include "model/parameters/store.hpp"
#include "model/spec.hpp"

namespace trireme::generate {

/// An open checkpoint with a GPT in it, written at any layout. Needs no MPI.
class CheckpointModel {
 public:
  /// Throws as checkpoint::Reader does.
  explicit CheckpointModel(const std::filesystem::path& path);

  const checkpoint::Header& header() const { return reader_.header(); }

  /// Rows of the word embedding. Throws DataError when the checkpoint holds no GPT.
  std::int64_t vocab() const;

  /// The type in which the checkpoint holds the weights.
  DType dtype() const;

  /// The weights of the rank at `place` in `layout`, in `backend`'s memory, rounded to `dtype`;
  /// their checksums are verified. Needs no other rank. Throws DataError naming the file and the
  /// tensor when one is missing, damaged or not of the shape that `spec` gives it.
  std::unique_ptr<model::ParameterStore> weights(const model::ModelSpec& spec,
                                                 device::Backend& backend,
                                                 const grid::Layout& layout,
                                                 const grid::Coordinates& place, DType dtype) const;
  /// All weights on one rank, in the type they are stored in.
  std::unique_ptr<model::ParameterStore> weights(const model::ModelSpec& spec,
                                                 device::Backend& backend) const;

 private:
  const checkpoint::TensorInfo& tensor(const std::string& name) const;

  std::filesystem::path path_;
  checkpoint::Reader reader_;
};

// A whole GPT on one rank, and the tables that it and BatchDecoder read by position.

/// What attention reads by a token's position, in the backend's memory.
class PositionTables {
 public:
  /// For a model of `spec` and contexts of up to `positions` tokens; window_starts() for passes
  /// without a cache of at most `pass_tokens`. `sizes` has the type and the tensor ranks.
  PositionTables(device::Backend& backend, const model::ModelSpec& spec,
                 const model::LayerSizes& sizes, std::int64_t positions, std::int64_t pass_tokens);

  /// LayerContext::rotary: [positions, head_dim]; empty without rotary positions.
  const Tensor& rotary() const { return rotary_; }
  /// PassInfo::document_start of a sequence from its first token on: [pass_tokens]; null without a
  /// window shorter than these.
  const std::int32_t* window_starts() const {
    return static_cast<const std::int32_t*>(window_memory_.get());
  }

 private:
  device::Buffer rotary_memory_, window_memory_;
  Tensor rotary_;
};

/// The model in inference: no dropout, a batch of one. Each call computes all positions, through
/// the layers' forward pass of training. Allocates everything when made.
class Decoder {
 public:
  /// `parameters` holds all weights of the model of `spec` (layout 1, 1, 1) and must outlive this,
  /// as must `backend`.
  Decoder(device::Backend& backend, const model::ParameterStore& parameters,
          const model::ModelSpec& spec);
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  /// The maximum number of tokens of a context.
  std::int64_t capacity() const { return spec_.embedding.positions; }
  std::int64_t vocab() const { return spec_.vocab; }

  /// The logits [vocab] of the token that follows `context`, which has 1 to capacity() ids below
  /// vocab(). Valid until the next call.
  std::span<const double> logits(std::span<const std::int32_t> context);

 private:
  struct Scratch {
    model::Head::Activations head;  ///< of one position
    std::int32_t* ids = nullptr;
    Tensor stream;  ///< [t, 1, h]
    model::Embedding::Activations embedding;
    std::vector<model::BlockActivations> blocks;  ///< one over the other
    model::LayerWorkspace workspace;
  };

  /// Scratch memory for passes of `sizes`, and for the logits of one token.
  Scratch take_scratch(model::Arena& arena, const model::LayerSizes& sizes) const;
  model::LayerSizes sizes(std::int64_t tokens) const;
  model::LayerContext context(std::int64_t tokens);

  /// Runs `ids` through all layers. Returns the residual stream of the last token, [1, 1, h].
  Tensor run(std::span<const std::int32_t> ids);
  void compute_logits(const Tensor& stream);

  device::Backend& backend_;
  comm::SerialCommunicator serial_;
  model::ModelSpec spec_;
  DType dtype_;
  model::Embedding embedding_;
  std::vector<model::TransformerBlock> blocks_;
  model::Head head_;
  device::Buffer scratch_memory_;
  PositionTables tables_;
  std::vector<double> logits_;
};

}  // namespace trireme::generate
