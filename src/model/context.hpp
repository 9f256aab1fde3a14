// What all layers work with: memory (Arena), sizes, the backend, the tensor group, the pass.
// Letters: s sequence, b micro-batch, T = s b tokens, h hidden, t tensor ranks; S and U are the
// parts of s and T that a rank has of the residual stream: s and T themselves, or under sequence
// parallelism s / t and T / t.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.hpp"
#include "core/tensor.hpp"
#include "device/backend.hpp"
#include "grid/layout.hpp"

namespace trireme::model {

/// Hands out consecutive tensors of one block of memory. Without a block it only counts: the plan
/// and the allocation come from the same calls, so they cannot disagree.
class Arena {
 public:
  /// Counts only; its tensors have no data.
  Arena() = default;
  /// Cuts up `base`, which must hold what a counting run of the same calls reported.
  explicit Arena(void* base) : base_(static_cast<std::byte*>(base)) {}

  /// The next tensor, aligned to 256 bytes.
  Tensor take(DType dtype, Shape shape) {
    const std::size_t begin = bytes_;
    bytes_ += (shape.size() * size_of(dtype) + kAlignment - 1) / kAlignment * kAlignment;
    return {base_ ? base_ + begin : nullptr, dtype, shape};
  }

  /// The next `count` 32-bit integers.
  std::int32_t* take_ints(std::int64_t count) {
    return static_cast<std::int32_t*>(take(DType::f32, {count}).data);
  }

  /// Calls take(i) for 0 <= i < count, each of which starts at the same place: alternatives, only
  /// one of which is in use at a time.
  template <typename Take>
  void overlay(std::size_t count, const Take& take) {
    const std::size_t begin = bytes_;
    std::size_t end = begin;
    for (std::size_t i = 0; i < count; ++i) {
      bytes_ = begin;
      take(i);
      end = std::max(end, bytes_);
    }
    bytes_ = end;
  }

  /// Bytes handed out so far, alignment included.
  std::size_t bytes() const { return bytes_; }

 private:
  static constexpr std::size_t kAlignment = 256;
  std::byte* base_ = nullptr;
  std::size_t bytes_ = 0;
};

/// The sizes of a rank's tensors that all layers share.
struct LayerSizes {
  std::int64_t hidden = 1;
  std::int64_t sequence = 1;
  std::int64_t micro_batch = 1;
  int tensor_ranks = 1;
  Precision precision;
  bool sequence_parallel = false;  ///< each tensor rank has a part of the residual stream

  std::int64_t tokens() const { return sequence * micro_batch; }
  /// The type of what is summed over activations: means, log-sum-exps.
  DType statistics() const { return accumulation_type(precision.activations); }
  /// Parts into which tensor ranks shard the residual stream.
  int sp_ranks() const { return sequence_parallel ? tensor_ranks : 1; }
  /// The whole residual stream: [s, b, h].
  Shape hidden_shape() const { return {sequence, micro_batch, hidden}; }
  /// A rank's part of it: [S, b, h].
  Shape shard_shape() const { return {sequence / sp_ranks(), micro_batch, hidden}; }
  /// The same in rows, one for each token: [U, h].
  Shape shard_rows() const { return {tokens() / sp_ranks(), hidden}; }
};

/// Scratch memory of FP8 GEMMs, shared by all linears; empty without them.
struct Fp8Workspace {
  Tensor operand;     ///< an input x of a linear, or a gradient dy: as many elements as the largest
  Tensor transposed;  ///< the same of dy^T, for the weight gradient
  Tensor amax;        ///< [1] fp32, of what has no place in `amaxes`
  /// [linears, 2] fp32 of all the model's linears that may be in FP8, zeros when a pass begins:
  /// amax of a linear's input and of the gradient of its output (Linear::with_input_amax()).
  Tensor amaxes;
  Tensor scales;             ///< fp32: of the operand, as many as the most that one has
  Tensor transposed_scales;  ///< the same of dy^T, where blocks have them
};

/// The sizes with what computes and communicates.
struct LayerContext : LayerSizes {
  LayerContext(const LayerSizes& sizes, device::Backend& backend_in, comm::Communicator& tensor_in)
      : LayerSizes(sizes), backend(backend_in), tensor(tensor_in) {
    const auto fits = [&](DType gemm) { return gemm == precision.activations || is_fp8(gemm); };
    TRIREME_CHECK(precision.weights == precision.activations && fits(precision.gemm) &&
                      fits(precision.gemm_gradients),
                  "passes compute in one type, or in FP8 inside GEMMs, not with weights in {}, "
                  "GEMM operands in {} and {}, activations in {}",
                  name_of(precision.weights), name_of(precision.gemm),
                  name_of(precision.gemm_gradients), name_of(precision.activations));
  }

  device::Backend& backend;
  comm::Communicator& tensor;  ///< the tensor-parallel group
  Fp8Workspace fp8 = {};
  Tensor rotary = {};  ///< kernels::Rotary::table, in a model with rotary positions

  /// The first position of this rank's part of the residual stream.
  std::int64_t first_position() const {
    return sp_ranks() == 1 ? 0 : tensor.rank() * shard_shape()[0];
  }
};

/// Multiplies a part of the residual stream x, [U, h], by `factor`, in place.
inline void scale_stream(const LayerContext& context, const Tensor& x, double factor) {
  if (factor == 1.0) return;
  const std::int64_t h = context.hidden;
  context.backend.scaled_copy({.x = x,
                               .out = x,
                               .rows = x.size() / h,
                               .columns = h,
                               .x_stride = h,
                               .out_stride = h,
                               .factor = factor});
}

/// The rows of a vocabulary of `vocab` that this rank holds.
inline grid::ShardRange vocabulary_shard(const LayerContext& context, std::int64_t vocab) {
  return grid::padded_shard(vocab, context.tensor_ranks, context.tensor.rank());
}

/// Where a layer stands in the model.
struct LayerPlace {
  std::string name;  ///< prefix of its parameters, such as "layers/3/"
  int layer = 0;     ///< keys dropout
  std::int64_t hidden = 1;
  double init_std = 0.02;         ///< of initial weights
  double output_init_std = 0.02;  ///< of those that end a sublayer
  bool fp8 = false;               ///< BlockSpec::fp8
  bool fp8_blocks = false;        ///< BlockSpec::fp8_blocks

  /// LinearSpec::fp8_number of linear `i` of the layer.
  int fp8_number(int i) const { return kFp8Linears * layer + i; }
  static constexpr int kFp8Linears = 4;  ///< qkv, projection, and both of the MLP
};

/// How a forward pass treats one micro-batch: dropout is on when training, keyed by the first
/// sample's index in the run.
struct PassInfo {
  bool training = true;
  std::uint64_t seed = 0;
  /// The first sample's index in the run, [1] in the backend's memory; null without dropout.
  const std::uint64_t* first_sample = nullptr;
  /// Where each token's document begins: [b, s] in the backend's memory; null: attention ignores
  /// documents.
  const std::int32_t* document_start = nullptr;
  /// Each token's position within its document: [s, b] in the backend's memory; null: its index.
  const std::int32_t* positions = nullptr;
  /// Tokens of each sample before its padding: [b] in the backend's memory; null: no padding.
  const std::int32_t* lengths = nullptr;

  /// The dropout of one site. Throws InternalError where a pass drops without a first sample: all
  /// micro-batches would have the same masks.
  kernels::Dropout dropout(double probability, int layer, DropoutSite site) const {
    TRIREME_CHECK(!training || probability == 0.0 || first_sample,
                  "dropout of layer {} without the number of the first sample", layer);
    return {.probability = training ? probability : 0.0,
            .seed = seed,
            .first_sample = first_sample,
            .layer = static_cast<std::uint32_t>(layer),
            .site = site};
  }
};

/// The implementations of one layer by the name that a spec gives them.
template <typename Factory>
class LayerKinds {
 public:
  LayerKinds(std::initializer_list<std::pair<const std::string, Factory>> kinds) : kinds_(kinds) {}

  /// Throws InternalError where `kind` is known already.
  void add(const std::string& kind, Factory make) {
    TRIREME_CHECK(kinds_.emplace(kind, make).second, "two layers are called '{}'", kind);
  }
  /// Throws InternalError for an unknown kind.
  Factory find(const std::string& kind) const {
    const auto found = kinds_.find(kind);
    TRIREME_CHECK(found != kinds_.end(), "no layer is called '{}'", kind);
    return found->second;
  }
  /// All kinds, sorted.
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& [name, factory] : kinds_) names.push_back(name);
    return names;
  }

 private:
  std::map<std::string, Factory> kinds_;
};

/// Scratch memory of a rank, shared by all its layers and micro-batches.
struct LayerWorkspace {
  Tensor hidden;  ///< [s, b, h]: the attention's output before its tensor-parallel sum; gradients
  /// [s, b, h]: the same of the MLP, and the gradient of its output. Under sequence parallelism not
  /// `hidden`, where the attention's is gathered while fc2's weight gradient reads that.
  Tensor mlp_out;
  /// Gradients inside a sublayer, and what a forward pass in FP8 does not keep of one: the largest
  /// Mlp or Attention::inner_width().
  Tensor inner;
  Tensor heads;    ///< [s, b, heads head_dim / t]: gradient of the heads' outputs
  Tensor staging;  ///< like hidden: registered with the tensor group, where there is one
};

/// Adds y to x, both of one shape [..., n], by the kernel that adds position embeddings.
inline void add(device::Backend& backend, const Tensor& x, const Tensor& y) {
  const std::int64_t n = x.shape[x.shape.rank() - 1], rows = x.size() / n;
  backend.position_dropout({.x = x.view({rows, 1, n}), .position = y.view({rows, n})});
}

/// [s, b, n] or [T, n] as [T, n].
inline Tensor as_rows(const Tensor& tensor) {
  const std::int64_t width = tensor.shape[tensor.shape.rank() - 1];
  return tensor.view({tensor.size() / width, width});
}

/// The first elements of a workspace tensor, with the wanted shape.
inline Tensor front(const Tensor& tensor, Shape shape) {
  return tensor.view({tensor.size()}).rows(0, shape.size()).view(shape);
}

// ---- how passes over new tokens, with cached keys and values, run their linears

/// New tokens up to which linears are kernels::DecodeLinear, fused with norms, biases and residual
/// sums; GEMMs and kernels of their own are faster from 2 on. Measured on one H200 in bf16, ms a
/// pass over 2, 4 and 8 tokens: 1.5B by DecodeLinear 2.63, 3.06 and 3.67, by GEMMs of as many rows
/// 2.53, 2.76 and 2.99, of 16 rows (generate::BatchDecoder) 2.43, 2.44 and 2.46.
inline constexpr std::int64_t kMaxFusedTokens = 1;

/// Whether a pass of `context` runs kernels::DecodeLinear.
inline bool decodes_fused(const LayerContext& context) {
  return context.tokens() <= kMaxFusedTokens;
}

}  // namespace trireme::model
