// The rows of trireme-bench kernels, of either backend: for each operation and shape the bytes that
// it must move, or the GEMMs that it must compute, and how to call it.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "bench/commands.hpp"

namespace trireme::bench {

inline constexpr std::int64_t kRowsVocabulary = 50257, kRowsPaddedVocabulary = 50304;

/// A layer of a GPT, a BERT or a Llama and its micro-batch.
struct Model {
  const char* name;  ///< in the names of its rows
  std::int64_t hidden, heads, sequence, batch;
  bool bert = false;          ///< full attention, exact GELU
  std::int64_t kv_heads = 0;  ///< above 0: a Llama, with SwiGLU of width `ffn`
  std::int64_t ffn = 0;
  double layers = 0;  ///< of a model whose step the rows add up to

  std::int64_t tokens() const { return sequence * batch; }
  std::int64_t head() const { return hidden / heads; }
  std::int64_t qkv() const { return hidden + 2 * (kv_heads > 0 ? kv_heads : heads) * head(); }
};

/// Adds rows to a meter. Tensors are named as in the operations' contracts.
class Rows {
 public:
  Rows(Meter& meter, const Model& model, double dropout)
      : meter_(meter),
        model_(model),
        dtype_(meter.dtype()),
        probability_(dropout),
        activation_{model.sequence, model.batch, model.hidden},
        activation_bytes_(static_cast<double>(activation_.size() * size_of(dtype_))) {}

  // layer_rows.cpp
  void attention(std::int64_t document);
  void cached_attention();
  void norms();
  void dropouts();
  void mlp();
  void embeddings();
  void llama();

  // kernels.cpp
  void fp8(bool blocks);
  void cross_entropy();
  /// Over `count` of `parameters`.
  void optimizer(std::int64_t count, double parameters);

 private:
  // The call of each operation of the list.
#define TRIREME_DEFINE(operation, Arguments)                                 \
  Call call(const kernels::Arguments& args) {                                \
    return [&backend = meter_.backend(), args] { backend.operation(args); }; \
  }
  TRIREME_OPERATIONS(TRIREME_DEFINE)
#undef TRIREME_DEFINE

  std::string name(const std::string& operation) const {
    return *model_.name ? fmt::format("{} {}", model_.name, operation) : operation;
  }
  kernels::Dropout dropout(DropoutSite site) {
    return {.probability = probability_,
            .seed = 1,
            .first_sample = static_cast<std::uint64_t*>(meter_.zeros({1}, DType::f64).data),
            .layer = 1,
            .site = site};
  }
  /// Calls in a step of what a model has once.
  double ends() const { return model_.layers > 0 ? 1 : 0; }
  Tensor activation() { return meter_.random(activation_, dtype_); }
  Tensor weight() { return meter_.random({model_.hidden}, dtype_); }
  Tensor gradient() { return meter_.zeros({model_.hidden}, accumulation_type(dtype_)); }
  Tensor per_token() { return meter_.random({model_.tokens()}, accumulation_type(dtype_)); }

  Meter& meter_;
  const Model& model_;
  const DType dtype_;
  const double probability_;
  const Shape activation_;
  const double activation_bytes_;
};

/// All rows of several models on `meter`; those of FP8 for a GPU of this compute capability (10 *
/// major + minor; 0: none).
void measure_models(Meter& meter, double dropout, int fp8_capability);

// GPT-2 124M at micro-batch 4 and sequence 256, and its GEMMs.

inline constexpr std::int64_t kBatch = 4, kSequence = 256, kTokens = kBatch * kSequence;
inline constexpr std::int64_t kHidden = 768, kHeads = 12, kLayers = 12, kFfn = 4 * kHidden;
inline constexpr std::int64_t kVocabulary = 50257, kPaddedVocabulary = 50304;
inline constexpr double kParameters = 124.44e6;

/// A linear layer y [T, out] = x [T, in] weight^T, weight [out, in].
struct Linear {
  const char* name;
  std::int64_t in, out;
  double count;  ///< in the model
};

inline constexpr std::array<Linear, 5> kLinears = {{{"qkv", kHidden, 3 * kHidden, kLayers},
                                                    {"projection", kHidden, kHidden, kLayers},
                                                    {"fc1_out", kHidden, kFfn, kLayers},
                                                    {"down", kFfn, kHidden, kLayers},
                                                    {"logits", kHidden, kPaddedVocabulary, 1}}};

/// Measures the forward GEMM, the input gradient and the weight gradient of every linear layer.
void measure_gemms(Meter& meter);

}  // namespace trireme::bench
