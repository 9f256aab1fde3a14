// A whole GPT on one rank in inference: the logits of the next token, with a KV cache.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/communicator.hpp"
#include "device/backend.hpp"
#include "model/layers/block.hpp"
#include "model/layers/embedding.hpp"
#include "model/layers/head.hpp"

namespace trireme::generate {

/// Whether the decoder keeps keys and values, or recomputes every position each time: slower,
/// through the layers' training pass, and the reference that the cache is tested against.
enum class Cache { keys_and_values, none };

/// The model in inference: no dropout, a batch of one. Allocates everything when made.
class Decoder {
 public:
  /// `parameters` holds all weights of the model of `spec` (layout 1, 1, 1) and must outlive this,
  /// as must `backend`.
  Decoder(device::Backend& backend, const model::ParameterStore& parameters,
          const model::ModelSpec& spec, Cache cache = Cache::keys_and_values);
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  /// The maximum number of tokens of a context.
  std::int64_t capacity() const { return spec_.embedding.positions; }
  std::int64_t vocab() const { return spec_.vocab; }

  /// The logits [vocab] of the token that follows `context`, which has 1 to capacity() ids below
  /// vocab(). Valid until the next call. With a cache, only what differs from the context of the
  /// last call, and at least its last token, is computed.
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
  void allocate_cache();
  std::int64_t longest_pass() const;

  /// Runs the new tokens `ids` through all layers, after `past` cached ones. Returns the residual
  /// stream of the last token, [1, 1, h].
  Tensor run(std::span<const std::int32_t> ids, std::int64_t past);
  void compute_logits(const Tensor& stream);

  device::Backend& backend_;
  comm::SerialCommunicator serial_;
  model::ModelSpec spec_;
  DType dtype_;
  Cache cache_;
  model::Embedding embedding_;
  std::vector<model::TransformerBlock> blocks_;
  model::Head head_;
  device::Buffer scratch_memory_;
  device::Buffer cache_memory_, rotary_memory_;
  Tensor rotary_;                      ///< LayerContext::rotary
  std::vector<Tensor> keys_, values_;  ///< [1, kv_heads, positions, head_dim] of each layer
  std::vector<std::int32_t> cached_;   ///< the ids whose keys and values are in the cache
  std::vector<double> logits_;
};

}  // namespace trireme::generate
