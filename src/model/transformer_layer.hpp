// One pre-norm transformer layer, split over tensor ranks: forward and backward.
// Source: Shoeybi et al., "Megatron-LM" (2019), section 3 (column- then row-parallel products).
// Letters: s sequence, b micro-batch, T = s b tokens, h hidden, f ffn, t tensor ranks; S and U are
// the parts of s and T that a rank has of the residual stream (residual_stream.hpp).
#pragma once

#include <optional>

#include "comm/communicator.hpp"
#include "model/arena.hpp"
#include "model/config.hpp"
#include "model/parameter_store.hpp"
#include "model/recompute.hpp"

namespace trireme::model {

/// The sizes that a rank's layers work with: enough to plan their memory.
struct LayerSizes {
  ModelConfig config;
  std::int64_t micro_batch = 1;
  int tensor_ranks = 1;
  DType dtype = DType::f32;
  /// Tokens whose logits may be in memory at once. Many, since each time the gradient of the whole
  /// word embedding is read and written.
  std::int64_t most_loss_tokens = 16384;
  bool cut_sequence = false;  ///< between products each tensor rank has a part of the positions
  Recompute recompute;

  std::int64_t tokens() const { return config.sequence * micro_batch; }
  /// Tokens whose logits are worked on at a time.
  std::int64_t loss_tokens() const {
    const std::int64_t times = (tokens() + most_loss_tokens - 1) / most_loss_tokens;
    return times > 1 ? (tokens() + times - 1) / times : tokens();
  }
  /// Parts into which the tensor ranks cut the residual stream.
  int stream_parts() const { return cut_sequence ? tensor_ranks : 1; }
  /// A rank's part of the stream: [S, b, h].
  Shape stream_shape() const {
    return {config.sequence / stream_parts(), micro_batch, config.hidden};
  }
  /// The same in rows, one for each token: [U, h].
  Shape stream_rows() const { return {tokens() / stream_parts(), config.hidden}; }
  std::int64_t local_heads() const { return config.heads / tensor_ranks; }
  std::int64_t local_hidden() const { return config.hidden / tensor_ranks; }
  std::int64_t local_ffn() const { return config.ffn / tensor_ranks; }
  /// Rows of the vocabulary that every tensor rank allocates, padding included.
  std::int64_t local_vocab() const {
    return grid::padded_shard(config.vocab, tensor_ranks, 0).padded;
  }
};

/// The sizes with what computes and communicates.
struct LayerContext : LayerSizes {
  LayerContext(const LayerSizes& sizes, device::Backend& backend_in, comm::Communicator& tensor_in)
      : LayerSizes(sizes), backend(backend_in), tensor(tensor_in) {}

  device::Backend& backend;
  comm::Communicator& tensor;  ///< the tensor-parallel group

  /// The first position of this rank's part of the residual stream.
  std::int64_t first_position() const {
    return stream_parts() == 1 ? 0 : tensor.rank() * stream_shape()[0];
  }
  /// The rows of the vocabulary that this rank holds.
  grid::ShardRange vocabulary_shard() const {
    return grid::padded_shard(config.vocab, tensor_ranks, tensor.rank());
  }
};

/// Scratch memory that the CUDA kernels need for passes of these sizes, at most one operation at a
/// time.
std::size_t kernel_workspace_bytes(const LayerSizes& sizes);

/// How a forward pass treats one micro-batch: dropout is on when training, keyed by the first
/// sample's index in the run.
struct PassInfo {
  bool training = true;
  std::uint64_t first_sample = 0;
  /// Where each token's document begins: [b, s] in the backend's memory; null: attention ignores
  /// documents.
  const std::int32_t* document_start = nullptr;
};

/// The dropout of one site under `pass`.
kernels::Dropout dropout_at(const ModelConfig& config, const PassInfo& pass, int layer,
                            DropoutSite site);

/// What a layer needs of a forward pass in its backward pass. All sequence-major.
struct LayerActivations {
  Tensor mean1, rstd1;  ///< [U]
  Tensor norm1;         ///< [T, h]
  Tensor qkv;           ///< [s, b, 3 h / t]
  Tensor lse;           ///< [b, heads / t, s]
  Tensor context;       ///< [s, b, h / t], the heads' outputs
  Tensor middle;        ///< [S, b, h], the stream after attention
  Tensor mean2, rstd2;  ///< [U]
  Tensor norm2;         ///< [T, h]
  Tensor up;            ///< [T, f / t], before GELU, bias included
  Tensor activated;     ///< [T, f / t], after GELU

  /// Whether norm1 and norm2 stay what the forward pass wrote; if not, the backward pass makes them
  /// again. The other cheap output, `activated`, is kept always: see kernels::LinearGelu, which
  /// need not make it from `up` as it is stored.
  bool keeps_norms = true;

  /// With `norm` [T, h], norm1 and norm2 are that tensor, which other layers use as well.
  static LayerActivations take(Arena& arena, const LayerSizes& sizes,
                               const std::optional<Tensor>& norm = std::nullopt);
  /// Such a tensor.
  static Tensor take_norm(Arena& arena, const LayerSizes& sizes);
};

/// Scratch of a rank, shared by all its layers and micro-batches.
struct LayerWorkspace {
  Tensor stream;  ///< [s, b, h]: a product before its tensor-parallel sum, a sublayer's gradient
  Tensor wide;    ///< [T, max(3 h, f) / t]: gradients inside a sublayer
  Tensor narrow;  ///< [s, b, h / t]: gradient of the heads' outputs
  Tensor lent;    ///< like stream: the tensor group's, where there is one

  /// All of it, from `arena`; `lent` only with several tensor ranks.
  static LayerWorkspace take(Arena& arena, const LayerSizes& sizes);
};

/// The gradients of the outputs of a layer's four products. With the products' inputs, which a
/// forward pass saves, they give the gradients of the weight matrices. Of those that are gathered
/// from the residual stream, this rank's part.
struct ProductGradients {
  Tensor qkv;         ///< [s, b, 3 h / t]
  Tensor projection;  ///< [S, b, h]
  Tensor up;          ///< [T, f / t]
  Tensor down;        ///< [S, b, h]

  /// Places over what no pass reads any more once the backward pass has come to them: they take no
  /// memory of their own. `output` is the layer's. Not for layers that are computed again, fully or
  /// in part.
  static ProductGradients over(const LayerActivations& saved, const Tensor& output) {
    return {saved.qkv, saved.middle, saved.up, output};
  }
};

/// The layer with logical number `layer`; its weights live in a ParameterStore.
class TransformerLayer {
 public:
  /// `parameters` must hold the layer and outlive this.
  TransformerLayer(const ParameterStore& parameters, int layer);

  /// Writes output [S, b, h] and `saved` from input [S, b, h]; without an output it writes `saved`
  /// alone, what backward() needs, and leaves out the last product. Collective over the tensor
  /// group.
  void forward(const LayerContext& context, const LayerWorkspace& workspace, const PassInfo& pass,
               const Tensor& input, const LayerActivations& saved, const Tensor& output) const;

  /// Turns `gradient` [S, b, h], that of the output, into that of the input, in place, and adds the
  /// weight gradients: where the stream is cut, those of Parameter::of_stream are of this rank's
  /// positions alone. With `kept` those of the weight matrices are left to backward_weights(), and
  /// what that needs is written there. Collective over the tensor group.
  void backward(const LayerContext& context, const LayerWorkspace& workspace, const PassInfo& pass,
                const Tensor& input, const LayerActivations& saved, const Tensor& gradient,
                const ProductGradients* kept = nullptr) const;

  /// Adds the gradients of the weight matrices, after a backward() that left them. Collective over
  /// the tensor group.
  void backward_weights(const LayerContext& context, const LayerWorkspace& workspace,
                        const LayerActivations& saved, const ProductGradients& kept) const;

  /// forward() of t new positions over `past` cached ones, without dropout; keys, values [b, heads,
  /// capacity, head_dim]. input and output are `stream` [t, b, h], in place; `saved` is scratch
  /// here. Collective over the tensor group.
  void forward_cached(const LayerContext& context, const LayerWorkspace& workspace,
                      const LayerActivations& saved, const Tensor& stream, const Tensor& keys,
                      const Tensor& values, std::int64_t past) const;

 private:
  /// Writes saved.qkv: what attention starts from.
  void project_qkv(const LayerContext& context, const Tensor& input,
                   const LayerActivations& saved) const;
  /// From the heads' outputs to saved.middle, the stream after attention, and saved.norm2.
  void finish_attention(const LayerContext& context, const LayerWorkspace& workspace,
                        const PassInfo& pass, const Tensor& input,
                        const LayerActivations& saved) const;
  /// Writes saved.norm1, and saved.norm2 again from saved.middle, with their statistics.
  void normalize1(const LayerContext& context, const Tensor& input,
                  const LayerActivations& saved) const;
  void normalize2(const LayerContext& context, const LayerActivations& saved) const;
  /// From saved.norm2 and saved.middle to `output`, or to what backward() needs alone.
  void mlp_forward(const LayerContext& context, const LayerWorkspace& workspace,
                   const PassInfo& pass, const LayerActivations& saved, const Tensor& output) const;
  /// The two halves of backward(), last first.
  void mlp_backward(const LayerContext& context, const LayerWorkspace& workspace,
                    const PassInfo& pass, const LayerActivations& saved, const Tensor& gradient,
                    const ProductGradients* kept) const;
  void attention_backward(const LayerContext& context, const LayerWorkspace& workspace,
                          const PassInfo& pass, const Tensor& input, const LayerActivations& saved,
                          const Tensor& gradient, const ProductGradients* kept) const;

  int layer_;
  WeightGradient norm1_weight_, norm1_bias_, qkv_weight_, qkv_bias_, projection_weight_,
      projection_bias_;
  WeightGradient norm2_weight_, norm2_bias_, up_weight_, up_bias_, down_weight_, down_bias_;
};

// The products of a linear layer: x, dx [T, in], y, dy [T, out], weight, dweight [out, in], bias,
// dbias [out]; T stands for all axes but the last. Types as kernels::Gemm has them.

/// Writes y = x weight^T + bias, or without a bias y = x weight^T.
void linear_forward(device::Backend& backend, const Tensor& x, const Tensor& weight,
                    const Tensor& y, const Tensor& bias = {});
/// Adds dy^T x to dweight and, where it is given, the column sums of dy to dbias.
void linear_weight_gradient(device::Backend& backend, const Tensor& x, const Tensor& dy,
                            const Tensor& dweight, const Tensor& dbias = {});
/// Writes dx = dy weight.
void linear_input_gradient(device::Backend& backend, const Tensor& dy, const Tensor& weight,
                           const Tensor& dx);

}  // namespace trireme::model
