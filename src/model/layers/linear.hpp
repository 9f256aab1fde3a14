// Linear layers y = x W^T + b of tensor parallelism: column-parallel ones shard the rows of W (the
// outputs) over the tensor ranks, row-parallel ones its columns (the inputs).
// Source: Shoeybi et al., "Megatron-LM" (2019), section 3.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "model/context.hpp"
#include "model/parameters/store.hpp"

namespace trireme::model {

/// This rank's shard of `full` [s, b, h] or [T, h]; all of it without sequence parallelism.
Tensor sp_shard(const LayerContext& context, const Tensor& full);

/// Leaves in sp_shard(full) the sum of `full` over the tensor ranks, by a reduce-scatter or an
/// all-reduce: the end of a row-parallel linear. Under sequence parallelism the rest of `full` is
/// left undefined. Collective.
void sp_reduce(const LayerContext& context, const Tensor& full);
/// The same, overlapped with what is enqueued next until wait().
std::unique_ptr<comm::Request> start_sp_reduce(const LayerContext& context, const Tensor& full);

/// Completes `full`, of which each rank has written sp_shard(), by an all-gather: the start of a
/// column-parallel linear. Collective.
void sp_gather(const LayerContext& context, const Tensor& full);
/// The same for a `shard` that may lie elsewhere: copied into `full` and completed there; without
/// sequence parallelism `shard` itself is the result. Collective.
Tensor sp_gather(const LayerContext& context, const Tensor& shard, const Tensor& full);

/// An all-gather under way. A GEMM that reads its result may take the parts as they come.
struct SpGather {
  PartArrivals arrivals;
  std::unique_ptr<comm::Request> request;

  /// Makes later work wait until all parts are there, and own memory may be written again.
  void finish() const {
    if (request) request->wait();
  }
};

/// sp_gather() for such a GEMM, the next work that is enqueued. Collective.
SpGather start_sp_gather(const LayerContext& context, const Tensor& full);
/// The same for a `shard` that may lie elsewhere, as sp_gather() has it. Collective.
SpGather start_sp_gather(const LayerContext& context, const Tensor& shard, const Tensor& full);

// The GEMMs of a linear layer: x, dx [T, in], y, dy [T, out], weight, dweight [out, in], bias,
// dbias [out]; T stands for all axes but the last. Types as kernels::Gemm has them.

/// Writes y = x weight^T + bias, or without a bias y = x weight^T; `arrivals` of x.
void linear_forward(device::Backend& backend, const Tensor& x, const Tensor& weight,
                    const Tensor& y, const Tensor& bias = {}, const PartArrivals& arrivals = {});
/// Adds dy^T x to dweight and, where it is given, the column sums of dy to dbias.
void linear_weight_gradient(device::Backend& backend, const Tensor& x, const Tensor& dy,
                            const Tensor& dweight, const Tensor& dbias = {});
/// Writes dx = dy weight.
void linear_input_gradient(device::Backend& backend, const Tensor& dy, const Tensor& weight,
                           const Tensor& dx);

/// The shape and initialization of a linear layer.
struct LinearSpec {
  std::string name;           ///< prefix of "weight" and "bias", such as "layers/3/mlp/up/"
  std::vector<RowBlock> out;  ///< rows of W
  std::int64_t in = 1;        ///< columns of W
  double init_std = 0.02;
  bool bias = true;
  bool fp8 = false;         ///< its GEMMs follow Precision::gemm where that is FP8
  bool fp8_blocks = false;  ///< and their operands have a scale for each block
  /// Its number among the model's linears that may be in FP8, by which it has a place for amax in
  /// Fp8Workspace::amaxes; below 0: it has none.
  int fp8_number = -1;
};

/// A matrix in FP8. Two matrices of one tensor with one scale share `scales`.
struct Fp8Matrix {
  Tensor codes;   ///< codes.scale points to `scales`
  Tensor scales;  ///< fp32, as kernels::scale_layout() says
};

/// What a linear's forward pass in FP8 keeps of its input x [T, in] for the weight gradient.
struct Fp8Input {
  Fp8Matrix transposed;  ///< x^T [in, T]
  bool gelu = false;     ///< the input is gelu_tanh(x), which the conversion computes
};

/// Sizes of the operands that a linear's passes make in FP8: of x or dy, the larger, and of dy^T.
struct Fp8Sizes {
  std::int64_t elements = 0;
  std::int64_t scales = 0;
  std::int64_t transposed_scales = 0;
};

/// The parameters of a linear layer, and its GEMMs.
///
/// In FP8 (`in_fp8`) each operand has one scale, max / amax of the whole tensor, on all tensor
/// ranks (current scaling), or with LinearSpec::fp8_blocks one for each 128 elements of a row of x,
/// dy and their transposes, and for each 128 x 128 of W. x and W are in Precision::gemm, dy in
/// Precision::gemm_gradients. The GPU's FP8 GEMMs want both operands contiguous along the sum:
/// besides x, W and dy there are x^T, made with x and kept in Fp8Input, W^T, made with W once a
/// batch, and dy^T, made with dy.
class Linear {
 public:
  /// `sharding` is rows (column-parallel) or columns (row-parallel).
  Linear(LinearSpec spec, TensorSharding sharding) : spec_(std::move(spec)), sharding_(sharding) {}

  void declare(ParameterTableBuilder& table) const;
  /// `parameters` must hold the declared ones and outlive this.
  void bind(const ParameterStore& parameters);

  /// Of a bound layer; empty without a bias.
  const WeightGradient& weight() const { return weight_; }
  const WeightGradient& bias() const { return bias_; }
  bool has_bias() const { return spec_.bias; }

  /// Whether the GEMMs of passes with these sizes are in FP8: its spec and Precision::gemm say so,
  /// T, inputs and outputs are multiples of 16 (kernels::fits_fp8), and no block that has a scale
  /// lies on two tensor ranks.
  bool in_fp8(const LayerSizes& sizes) const;
  /// What a forward pass keeps, from `arena`; empty unless in_fp8().
  Fp8Input take_input(Arena& arena, const LayerSizes& sizes) const;
  /// Takes the FP8 copies of W from `arena`; none unless in_fp8().
  void take_fp8_weight(Arena& arena, const LayerSizes& sizes);
  /// Makes the FP8 copies of W, which passes read instead of it until the next call. Collective
  /// over the tensor group if in_fp8().
  void cast_weight(const LayerContext& context) const;
  /// x, an input of passes, or dy, the gradient of an output, with a place for its amax: for the
  /// operation that writes it, one that raises it, and for the conversion to FP8, which reads it
  /// there instead of searching x or dy. Without a place where the conversion needs none, or
  /// converts more than this rank has written.
  Tensor with_input_amax(const LayerContext& context, const Tensor& x) const;
  Tensor with_gradient_amax(const LayerContext& context, const Tensor& dy) const;
  /// On this rank; zeros unless in_fp8().
  Fp8Sizes fp8_sizes(const LayerSizes& sizes) const;

 protected:
  /// Columns and rows of W on this rank.
  struct LocalExtents {
    std::int64_t in, out;
  };
  LocalExtents local(const LayerSizes& sizes) const;

  /// Writes y = x W^T + bias, and in FP8, which has no parts, `kept`: it may be empty if no
  /// backward pass follows.
  void forward_gemm(const LayerContext& context, const Tensor& x, const Tensor& y,
                    const Tensor& bias, const Fp8Input& kept,
                    const PartArrivals& arrivals = {}) const;
  /// Makes the FP8 copies of x [T, in]: that in context.fp8.operand, which it returns, unless
  /// `transposed_alone`, and kept.transposed if it is there. Collective for row-parallel linears.
  Tensor cast_input(const LayerContext& context, const Tensor& x, const Fp8Input& kept,
                    bool transposed_alone) const;
  /// Makes the FP8 copies of dy [T, out] in context.fp8, for dx (unless `transposed_alone`) and for
  /// dW; nothing unless in_fp8(). Collective for column-parallel linears.
  void cast_gradient(const LayerContext& context, const Tensor& dy, bool transposed_alone) const;
  /// Writes dx = dy W; in FP8 after cast_gradient(), of no other linear since.
  void input_gradient_gemm(const LayerContext& context, const Tensor& dy, const Tensor& dx) const;
  /// Adds dy^T x to the gradient of W and, where it is given, the column sums of dy to dbias; in
  /// FP8 after cast_gradient(), of no other linear since.
  void weight_gradient_gemm(const LayerContext& context, const Tensor& x, const Tensor& dy,
                            const Tensor& dbias, const Fp8Input& kept) const;

  LinearSpec spec_;
  TensorSharding sharding_;
  WeightGradient weight_, bias_;

 private:
  /// What cast() converts.
  struct Source {
    Tensor x;
    bool sharded = false;  ///< over the tensor ranks
    bool weight = false;
    bool gelu = false;  ///< gelu_tanh(x) in place of x
  };

  /// What has a scale in W, and in all other operands.
  kernels::ScaleBlocks weight_blocks() const;
  kernels::ScaleBlocks operand_blocks() const;
  bool shards_have_whole_blocks(const LayerSizes& sizes) const;
  /// `x` with place `i` of the linear; `gathered`: all sequence-parallel ranks write parts of it.
  Tensor with_amax(const LayerContext& context, const Tensor& x, int i, bool gathered) const;
  /// dy [T, out] and its transpose, in the scratch memory.
  Fp8Matrix gradient_matrix(const LayerContext& context, const Tensor& dy) const;
  Fp8Matrix transposed_gradient_matrix(const LayerContext& context, const Tensor& dy) const;
  /// Makes `out` of a source and `transposed` of its transpose; either may be empty. Collective
  /// where the source is sharded.
  void cast(const LayerContext& context, const Source& source, const Fp8Matrix& out,
            const Fp8Matrix& transposed) const;

  Fp8Matrix fp8_weight_;             ///< W [out, in]
  Fp8Matrix fp8_weight_transposed_;  ///< W^T [in, out]
};

/// y [T, out / t] = x W^T + b from the whole x [T, in].
class ColumnParallelLinear : public Linear {
 public:
  explicit ColumnParallelLinear(LinearSpec spec) : Linear(std::move(spec), TensorSharding::rows) {}

  /// Outputs on each rank: out / t, more where a row block has fewer shards (RowBlock::shards).
  std::int64_t local_out(const LayerSizes& sizes) const { return local(sizes).out; }

  /// Completes x, of which each rank has written sp_shard(), and writes y, and in FP8 `kept`.
  /// Collective.
  void forward(const LayerContext& context, const Tensor& x, const Tensor& y,
               const Fp8Input& kept = {}) const;
  /// The same from a complete x, which another linear reads, too.
  void forward_gathered(const LayerContext& context, const Tensor& x, const Tensor& y,
                        const Fp8Input& kept = {}) const;

  /// Writes this rank's term of dx = dy W [T, in]; the caller sums it over the tensor ranks. With
  /// `add_bias` it may add the gradient of b, too: in FP8 the sum over dy also finds amax.
  /// Collective if in_fp8().
  void input_gradient(const LayerContext& context, const Tensor& dy, const Tensor& dx,
                      bool add_bias = false) const;
  /// Adds the gradients of W and, with `add_bias`, of b, unless input_gradient() has; after
  /// input_gradient() with the same `add_bias`, with no other linear's between. With `deferred` [T,
  /// out / t], dy is copied there instead, for deferred_weight_gradient() to add that of W. In FP8
  /// `kept` stands for x.
  void weight_gradient(const LayerContext& context, const Tensor& x, const Tensor& dy,
                       const Tensor* deferred, bool add_bias, const Fp8Input& kept = {}) const;
  /// Collective if in_fp8().
  void deferred_weight_gradient(const LayerContext& context, const Tensor& x,
                                const Tensor& deferred, const Fp8Input& kept = {}) const;

 private:
  /// Whether input_gradient() adds the gradient of b.
  bool sums_with_amax(const LayerContext& context, const Tensor& dy) const {
    return spec_.bias && !dy.amax && with_gradient_amax(context, dy).amax;
  }
};

/// Which kernel of weight_gradient() adds the gradient of a row-parallel linear's bias: the one
/// that adds that of W, a separate one, or none: the caller does.
enum class BiasGradient { fused, separate, elsewhere };

/// y [s, b, out] = sum over the tensor ranks of x W^T from x [T, in / t]. The caller adds the
/// bias, fused with the residual sum.
class RowParallelLinear : public Linear {
 public:
  explicit RowParallelLinear(LinearSpec spec) : Linear(std::move(spec), TensorSharding::columns) {}

  /// Writes this rank's term of y, which the caller sums over the tensor ranks, and in FP8 `kept`.
  /// Collective if in_fp8().
  void forward(const LayerContext& context, const Tensor& x, const Tensor& y,
               const Fp8Input& kept = {}) const;
  /// Writes `kept` as forward() does, alone; nothing unless in_fp8(), where it is collective.
  void keep_input(const LayerContext& context, const Tensor& x, const Fp8Input& kept) const;

  /// Completes the gradient `dy` [S, b, out] of the shard in `full` [s, b, out] and returns it, [T,
  /// out], cast in FP8. What `meanwhile` enqueues overlaps with the gather where copy
  /// engines do that. Collective.
  Tensor complete_gradient(const LayerContext& context, const Tensor& dy, const Tensor& full,
                           const std::function<void()>& meanwhile = {}) const;
  /// Adds the gradients of W, from the complete one, and of b, from `dy`; with `deferred` that of W
  /// is left to later_weight_gradient() or deferred_weight_gradient(). In FP8 `kept` stands for x.
  void weight_gradient(const LayerContext& context, const Tensor& x, const Tensor& dy,
                       const Tensor& complete, bool deferred, BiasGradient bias,
                       const Fp8Input& kept = {}) const;
  /// Whether backward_by_parts() leaves the gradient of W to later_weight_gradient(), which can
  /// hide the next gather: under sequence parallelism, not in FP8, whose operands are in scratch
  /// memory.
  bool leaves_weight(const LayerSizes& sizes) const {
    return sizes.sp_ranks() > 1 && !in_fp8(sizes);
  }
  /// Adds the gradient of W from the complete dy, where backward_by_parts() left it.
  void later_weight_gradient(const LayerContext& context, const Tensor& x,
                             const Tensor& complete) const {
    if (leaves_weight(context))
      weight_gradient_gemm(context, as_rows(x), as_rows(complete), {}, {});
  }
  /// complete_gradient(), weight_gradient(), and `input_gradient(complete, arrivals)`, a GEMM that
  /// takes the parts of the complete gradient as they come. Where leaves_weight(), the caller adds
  /// the gradient of W by later_weight_gradient(), before it writes to `full` again. Collective.
  template <typename InputGradient>
  void backward_by_parts(const LayerContext& context, const Tensor& x, const Tensor& dy,
                         const Tensor& full, bool deferred, BiasGradient bias, const Fp8Input& kept,
                         const InputGradient& input_gradient) const {
    if (!leaves_weight(context)) {
      const Tensor complete = complete_gradient(context, dy, full);
      weight_gradient(context, x, dy, complete, deferred, bias, kept);
      return input_gradient(complete, PartArrivals());
    }
    const SpGather gather = start_sp_gather(context, dy, full);
    input_gradient(as_rows(full), gather.arrivals);
    gather.finish();
    weight_gradient(context, x, dy, as_rows(full), /*deferred=*/true, bias, kept);
  }
  /// `dy` is the gradient that weight_gradient() had. Collective.
  void deferred_weight_gradient(const LayerContext& context, const Tensor& x, const Tensor& dy,
                                const Tensor& full, const Fp8Input& kept = {}) const;
  /// Writes dx = dy W [T, in / t] from the complete dy [T, out]; after complete_gradient(), with no
  /// other linear's between.
  void input_gradient(const LayerContext& context, const Tensor& dy, const Tensor& dx) const;
};

}  // namespace trireme::model
