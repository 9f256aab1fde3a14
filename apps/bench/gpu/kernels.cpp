// One row for each operation and shape: the bytes that it must move, or the GEMMs that it must
// compute, and how to call it.
#include <array>
#include <string>
#include <vector>

#include "bench/gpu/commands.hpp"
#include "bench/gpu/meter.hpp"

namespace trireme::bench::gpu {
namespace {

constexpr std::int64_t kVocabulary = 50257, kPaddedVocabulary = 50304;
constexpr double kWide = 4.0;  // bytes of fp32

/// A layer of a GPT, a BERT or a Llama and its micro-batch, 16384 tokens in each.
struct Model {
  const char* name;
  std::int64_t hidden, heads, sequence, batch;
  bool bert = false;          ///< full attention, exact GELU
  std::int64_t kv_heads = 0;  ///< above 0: a Llama, with SwiGLU of width `ffn`
  std::int64_t ffn = 0;

  std::int64_t tokens() const { return sequence * batch; }
  std::int64_t head() const { return hidden / heads; }
  std::int64_t qkv() const { return hidden + 2 * (kv_heads > 0 ? kv_heads : heads) * head(); }
};
constexpr std::array<Model, 8> kModels = {{{"124M", 768, 12, 1024, 16},
                                           {"760M", 1536, 16, 2048, 8},
                                           {"1.5B", 1600, 25, 1024, 16},
                                           {"6.7B", 4096, 32, 2048, 8},
                                           {"BERT-Large 128", 1024, 16, 128, 128, true},
                                           {"BERT-Large 512", 1024, 16, 512, 32, true},
                                           {"Qwen2.5-1.5B", 1536, 12, 1024, 16, false, 2, 8960},
                                           {"Llama-3.1-8B", 4096, 32, 8192, 2, false, 8, 14336}}};

/// The rows of one model. Tensors are named as in the operations' contracts.
class Rows {
 public:
  Rows(Meter& meter, const Model& model, DType dtype, double dropout)
      : meter_(meter),
        backend_(meter.backend()),
        model_(model),
        dtype_(dtype),
        probability_(dropout),
        activation_{model.sequence, model.batch, model.hidden},
        activation_bytes_(static_cast<double>(activation_.size() * size_of(dtype))) {}

  void attention(std::int64_t document);
  void cached_attention();
  void norms();
  void dropouts();
  void mlp();
  void fp8();
  void embeddings();
  void cross_entropy();
  void llama();

 private:
  std::string name(const char* operation) const {
    return fmt::format("{} {}", model_.name, operation);
  }
  kernels::Dropout dropout(DropoutSite site) const {
    return {.probability = probability_, .seed = 1, .layer = 1, .site = site};
  }
  Tensor activation() { return meter_.random(activation_, dtype_); }
  Tensor weight() { return meter_.random({model_.hidden}, dtype_); }
  Tensor gradient() { return meter_.zeros({model_.hidden}, accumulation_type(dtype_)); }
  Tensor per_token() { return meter_.random({model_.tokens()}, accumulation_type(dtype_)); }

  Meter& meter_;
  device::Backend& backend_;
  const Model& model_;
  const DType dtype_;
  const double probability_;
  const Shape activation_;
  const double activation_bytes_;
};

/// Attention that stays within documents of `document` tokens, or within samples of as many.
void Rows::attention(std::int64_t document) {
  const bool whole = document == model_.sequence;
  const std::string of = whole ? "" : fmt::format(" of {}-token documents", document);
  // Two GEMMs forward and five backward, half of each masked by a causal mask.
  const double flops = static_cast<double>(model_.tokens()) *
                       static_cast<double>(document * model_.hidden) * (model_.bert ? 2.0 : 1.0);
  const auto forward = [=, this] {
    const std::int64_t heads = model_.heads, sequence = model_.sequence, batch = model_.batch;
    std::vector<std::int32_t> starts;
    for (std::int64_t token = 0; token < batch * sequence; ++token)
      starts.push_back(static_cast<std::int32_t>(token % sequence / document * document));
    return kernels::AttentionForward{
        .qkv = meter_.random({sequence, batch, model_.qkv()}, dtype_),
        .out = meter_.zeros(activation_, dtype_),
        .lse = meter_.zeros({batch, heads, sequence}, accumulation_type(dtype_)),
        .heads = heads,
        .dropout = dropout(DropoutSite::attention),
        .causal = !model_.bert,
        .document_start = whole ? nullptr : meter_.upload(starts),
        .kv_heads = model_.kv_heads};
  };
  meter_.gemm(name("attention forward") + of, 2 * flops, [=, this]() -> Call {
    return [this, args = forward()] { backend_.attention_forward(args); };
  });
  meter_.gemm(name("attention backward") + of, 5 * flops, [=, this]() -> Call {
    const kernels::AttentionForward saved = forward();
    backend_.attention_forward(saved);
    const kernels::AttentionBackward args{.dout = activation(),
                                          .qkv = saved.qkv,
                                          .out = saved.out,
                                          .lse = saved.lse,
                                          .dqkv = meter_.zeros(saved.qkv.shape, dtype_),
                                          .heads = saved.heads,
                                          .dropout = saved.dropout,
                                          .causal = saved.causal,
                                          .document_start = saved.document_start,
                                          .kv_heads = saved.kv_heads};
    return [this, args] { backend_.attention_backward(args); };
  });
}

void Rows::cached_attention() {
  // One new token for each sample; the caches are read once.
  meter_.stream(name("attention cached"), 2 * activation_bytes_, [=, this]() -> Call {
    const Shape cache{model_.batch, model_.heads, model_.sequence, model_.hidden / model_.heads};
    const kernels::AttentionCached args{
        .qkv = meter_.random({1, model_.batch, 3 * model_.hidden}, dtype_),
        .keys = meter_.random(cache, dtype_),
        .values = meter_.random(cache, dtype_),
        .out = meter_.zeros({1, model_.batch, model_.hidden}, dtype_),
        .heads = model_.heads,
        .past = model_.sequence - 1};
    return [this, args] { backend_.attention_cached(args); };
  });
}

void Rows::norms() {
  meter_.stream(name("layernorm forward"), 2 * activation_bytes_, [this]() -> Call {
    const kernels::LayerNormForward args{.x = activation(),
                                         .weight = weight(),
                                         .bias = weight(),
                                         .out = activation(),
                                         .mean = per_token(),
                                         .rstd = per_token()};
    return [this, args] { backend_.layernorm_forward(args); };
  });
  const auto backward = [this](bool again) -> Call {
    const kernels::LayerNormBackward args{.dout = activation(),
                                          .x = activation(),
                                          .weight = weight(),
                                          .mean = per_token(),
                                          .rstd = per_token(),
                                          .dx = activation(),
                                          .dweight = gradient(),
                                          .dbias = gradient(),
                                          .out = again ? activation() : Tensor(),
                                          .bias = again ? weight() : Tensor()};
    return [this, args] { backend_.layernorm_backward(args); };
  };
  meter_.stream(name("layernorm backward"), 4 * activation_bytes_, [=] { return backward(false); });
  meter_.stream(name("layernorm backward, result again"), 5 * activation_bytes_,
                [=] { return backward(true); });
}

void Rows::dropouts() {
  const auto sum = [this] {
    return kernels::BiasDropoutResidual{.x = activation(),
                                        .bias = weight(),
                                        .residual = activation(),
                                        .out = activation(),
                                        .dropout = dropout(DropoutSite::mlp)};
  };
  meter_.stream(name("bias dropout residual"), 3 * activation_bytes_, [=, this]() -> Call {
    return [this, args = sum()] { backend_.bias_dropout_residual(args); };
  });
  meter_.stream(name("bias dropout residual norm"), 4 * activation_bytes_, [=, this]() -> Call {
    const kernels::BiasDropoutResidualNorm args{.sum = sum(),
                                                .weight = weight(),
                                                .norm_bias = weight(),
                                                .norm = activation(),
                                                .mean = per_token(),
                                                .rstd = per_token()};
    return [this, args] { backend_.bias_dropout_residual_norm(args); };
  });
  meter_.stream(name("dropout backward"), 2 * activation_bytes_, [this]() -> Call {
    const kernels::DropoutBackward args{
        .dout = activation(), .dx = activation(), .dropout = dropout(DropoutSite::mlp)};
    return [this, args] { backend_.dropout_backward(args); };
  });
  meter_.stream(name("bias gradient"), activation_bytes_, [this]() -> Call {
    const kernels::BiasGradient args{.dout = activation(), .dbias = gradient()};
    return [this, args] { backend_.bias_gradient(args); };
  });
}

void Rows::mlp() {
  const Shape wider{model_.tokens(), 4 * model_.hidden};
  const auto function = model_.bert ? kernels::Activation::gelu : kernels::Activation::gelu_tanh;
  meter_.stream(name("gelu forward"), 8 * activation_bytes_, [=, this]() -> Call {
    const kernels::GeluForward args{.x = meter_.random(wider, dtype_),
                                    .out = meter_.zeros(wider, dtype_),
                                    .function = function};
    return [this, args] { backend_.gelu_forward(args); };
  });
  meter_.stream(name("gelu backward"), 12 * activation_bytes_, [=, this]() -> Call {
    const kernels::GeluBackward args{.dout = meter_.random(wider, dtype_),
                                     .x = meter_.random(wider, dtype_),
                                     .dx = meter_.zeros(wider, dtype_),
                                     .dbias = meter_.zeros({wider[1]}, accumulation_type(dtype_)),
                                     .function = function};
    return [this, args] { backend_.gelu_backward(args); };
  });
  // In the form that is faster: trireme-bench gemm tells which.
  const double flops = 2.0 * static_cast<double>(wider.size()) * static_cast<double>(model_.hidden);
  const Shape narrow{model_.tokens(), model_.hidden};
  meter_.gemm(name("linear gelu"), flops, [=, this]() -> Call {
    const kernels::LinearGelu args{.x = meter_.random(narrow, dtype_),
                                   .weight = meter_.random({wider[1], narrow[1]}, dtype_),
                                   .bias = meter_.random({wider[1]}, dtype_),
                                   .fc1_out = meter_.zeros(wider, dtype_),
                                   .gelu_out = meter_.zeros(wider, dtype_),
                                   .function = function};
    return [this, args] { backend_.linear_gelu(args); };
  });
  meter_.gemm(name("linear gelu gradient"), flops, [=, this]() -> Call {
    const kernels::LinearGeluGradient args{
        .dy = meter_.random(narrow, dtype_),
        .weight = meter_.random({narrow[1], wider[1]}, dtype_),
        .fc1_out = meter_.random(wider, dtype_),
        .dfc1_out = meter_.zeros(wider, dtype_),
        .dbias = meter_.zeros({wider[1]}, accumulation_type(dtype_)),
        .function = function};
    return [this, args] { backend_.linear_gelu_gradient(args); };
  });
  meter_.gemm(name("linear weight gradient"), flops, [=, this]() -> Call {
    const kernels::LinearWeightGradient args{
        .x = meter_.random(wider, dtype_),
        .dy = meter_.random(narrow, dtype_),
        .dweight = meter_.zeros({narrow[1], wider[1]}, accumulation_type(dtype_)),
        .dbias = gradient()};
    return [this, args] { backend_.linear_weight_gradient(args); };
  });
  if (dtype_ == accumulation_type(dtype_)) return;
  meter_.gemm(name("linear weight gradient, narrow"), flops, [=, this]() -> Call {
    const kernels::LinearWeightGradient args{.x = meter_.random(wider, dtype_),
                                             .dy = meter_.random(narrow, dtype_),
                                             .dweight = meter_.zeros({narrow[1], wider[1]}, dtype_),
                                             .dbias = gradient()};
    return [this, args] { backend_.linear_weight_gradient(args); };
  });
}

/// What a Llama's layer has instead of layer norms, learned positions and GELU.
void Rows::llama() {
  meter_.stream(name("rms norm forward"), 2 * activation_bytes_, [this]() -> Call {
    const kernels::LayerNormForward args{.x = activation(),
                                         .weight = weight(),
                                         .out = activation(),
                                         .rstd = per_token(),
                                         .kind = kernels::NormKind::rms};
    return [this, args] { backend_.layernorm_forward(args); };
  });
  meter_.stream(name("rms norm backward"), 4 * activation_bytes_, [this]() -> Call {
    const kernels::LayerNormBackward args{.dout = activation(),
                                          .x = activation(),
                                          .weight = weight(),
                                          .rstd = per_token(),
                                          .dx = activation(),
                                          .dweight = gradient(),
                                          .kind = kernels::NormKind::rms};
    return [this, args] { backend_.layernorm_backward(args); };
  });
  meter_.stream(name("residual rms norm"), 4 * activation_bytes_, [this]() -> Call {
    const kernels::BiasDropoutResidualNorm args{
        .sum = {.x = activation(), .residual = activation(), .out = activation()},
        .weight = weight(),
        .norm = activation(),
        .rstd = per_token(),
        .kind = kernels::NormKind::rms};
    return [this, args] { backend_.bias_dropout_residual_norm(args); };
  });
  const std::int64_t kv_heads = model_.kv_heads, head = model_.head();
  const double token_bytes = static_cast<double>(model_.tokens() * size_of(dtype_));
  const double qk_bytes = token_bytes * static_cast<double>((model_.heads + kv_heads) * head);
  const Shape qkv{model_.sequence, model_.batch, model_.qkv()};
  meter_.stream(name("rotary"), 2 * qk_bytes, [=, this]() -> Call {
    const kernels::Rotary args{
        .qkv = meter_.random(qkv, dtype_),
        .table = meter_.random({model_.sequence, head}, accumulation_type(dtype_)),
        .heads = model_.heads,
        .kv_heads = kv_heads};
    return [this, args] { backend_.rotary(args); };
  });
  meter_.stream(name("q and k norm forward"), 3 * qk_bytes, [=, this]() -> Call {
    const Shape kept{model_.tokens(), (model_.heads + kv_heads) * head};
    const kernels::QkNormForward args{
        .qkv = meter_.random(qkv, dtype_),
        .kept = meter_.zeros(kept, dtype_),
        .q_weight = meter_.random({head}, dtype_),
        .k_weight = meter_.random({head}, dtype_),
        .rstd = meter_.zeros({model_.tokens(), model_.heads + kv_heads}, DType::f32),
        .heads = model_.heads,
        .kv_heads = kv_heads};
    return [this, args] { backend_.qk_norm_forward(args); };
  });
  meter_.stream(name("q and k norm backward"), 3 * qk_bytes, [=, this]() -> Call {
    const Shape kept{model_.tokens(), (model_.heads + kv_heads) * head};
    const kernels::QkNormBackward args{
        .dqkv = meter_.random(qkv, dtype_),
        .kept = meter_.random(kept, dtype_),
        .q_weight = meter_.random({head}, dtype_),
        .k_weight = meter_.random({head}, dtype_),
        .rstd = meter_.random({model_.tokens(), model_.heads + kv_heads}, DType::f32),
        .dq_weight = meter_.zeros({head}, DType::f32),
        .dk_weight = meter_.zeros({head}, DType::f32),
        .heads = model_.heads,
        .kv_heads = kv_heads};
    return [this, args] { backend_.qk_norm_backward(args); };
  });
  const Shape inner{model_.tokens(), model_.ffn}, both{model_.tokens(), 2 * model_.ffn};
  const double inner_bytes = token_bytes * static_cast<double>(model_.ffn);
  meter_.stream(name("swiglu forward"), 3 * inner_bytes, [=, this]() -> Call {
    const kernels::GatedForward args{.x = meter_.random(both, dtype_),
                                     .out = meter_.zeros(inner, dtype_)};
    return [this, args] { backend_.gated_forward(args); };
  });
  meter_.stream(name("swiglu backward"), 5 * inner_bytes, [=, this]() -> Call {
    const kernels::GatedBackward args{.dout = meter_.random(inner, dtype_),
                                      .x = meter_.random(both, dtype_),
                                      .dx = meter_.zeros(both, dtype_)};
    return [this, args] { backend_.gated_backward(args); };
  });
}

/// The conversions of an MLP's activations [T, 4 h], and its first GEMM's three forms.
void Rows::fp8() {
  using enum DType;
  const std::int64_t T = model_.tokens(), h = model_.hidden;
  const double elements = static_cast<double>(4 * T * h);
  const auto operand = [this](Shape shape, DType dtype) {
    Tensor tensor = meter_.random(shape, dtype);
    tensor.scale = meter_.random({1}, f32).as<float>();
    return tensor;
  };
  meter_.stream(name("amax"), elements * size_of(dtype_), [=, this]() -> Call {
    const kernels::Amax args{.x = meter_.random({T, 4 * h}, dtype_),
                             .amax = meter_.zeros({1}, f32)};
    return [this, args] { backend_.amax(args); };
  });
  meter_.stream(name("fp8 cast, both layouts"), elements * (size_of(dtype_) + 2),
                [=, this]() -> Call {
                  const kernels::Quantize args{.x = meter_.random({T, 4 * h}, dtype_),
                                               .amax = meter_.random({1}, f32),
                                               .scale = meter_.zeros({1}, f32),
                                               .out = meter_.zeros({T, 4 * h}, float8_e4m3),
                                               .transposed = meter_.zeros({4 * h, T}, float8_e4m3)};
                  return [this, args] { backend_.quantize(args); };
                });
  const double flops = 2.0 * elements * static_cast<double>(h);
  const auto gemm = [&](const char* form, Shape a, DType a_type, Shape b, DType result,
                        double beta) {
    meter_.gemm(name(form), flops, [=, this]() -> Call {
      const kernels::Gemm args{.a = operand(a, a_type),
                               .b = operand(b, float8_e4m3),
                               .c = meter_.zeros({a[0], b[0]}, result),
                               .transpose_b = true,
                               .beta = beta,
                               .fast_accumulation = a_type == float8_e4m3};
      return [this, args] { backend_.gemm(args); };
    });
  };
  gemm("fp8 gemm, forward", {T, h}, float8_e4m3, {4 * h, h}, dtype_, 0.0);
  gemm("fp8 gemm, input gradient", {T, 4 * h}, float8_e5m2, {h, 4 * h}, dtype_, 0.0);
  gemm("fp8 gemm, weight gradient", {4 * h, T}, float8_e5m2, {h, T}, f32, 1.0);
}

void Rows::embeddings() {
  const Shape table{kPaddedVocabulary, model_.hidden}, positions{model_.sequence, model_.hidden};
  const double wide_bytes = kWide * static_cast<double>(activation_.size());
  meter_.stream(name("embedding forward"), 2 * activation_bytes_, [=, this]() -> Call {
    const kernels::EmbeddingForward args{.ids = meter_.ids(model_.tokens(), kVocabulary),
                                         .table = meter_.random(table, dtype_),
                                         .out = activation()};
    return [this, args] { backend_.embedding_forward(args); };
  });
  meter_.stream(name("embedding backward"), activation_bytes_ + 2 * wide_bytes,
                [=, this]() -> Call {
                  const kernels::EmbeddingBackward args{
                      .ids = meter_.ids(model_.tokens(), kVocabulary),
                      .dout = activation(),
                      .dtable = meter_.zeros(table, accumulation_type(dtype_))};
                  return [this, args] { backend_.embedding_backward(args); };
                });
  meter_.stream(name("position and dropout"), 2 * activation_bytes_, [=, this]() -> Call {
    const kernels::PositionDropout args{.x = activation(),
                                        .position = meter_.random(positions, dtype_),
                                        .dropout = dropout(DropoutSite::embedding)};
    return [this, args] { backend_.position_dropout(args); };
  });
  meter_.stream(name("position backward"), activation_bytes_, [=, this]() -> Call {
    const kernels::PositionBackward args{
        .dout = activation(), .dposition = meter_.zeros(positions, accumulation_type(dtype_))};
    return [this, args] { backend_.position_backward(args); };
  });
}

// Of every model alike: the logits do not depend on its width.
void Rows::cross_entropy() {
  const Shape shape{model_.tokens(), kPaddedVocabulary};
  const double bytes = static_cast<double>(shape.size() * size_of(dtype_));
  const auto statistics = [=, this] {
    return kernels::CrossEntropyStatistics{.logits = meter_.random(shape, dtype_),
                                           .columns = kVocabulary,
                                           .labels = meter_.ids(model_.tokens(), kVocabulary),
                                           .max = per_token(),
                                           .sum = per_token(),
                                           .target = per_token()};
  };
  meter_.stream("cross entropy statistics", bytes, [=, this]() -> Call {
    return [this, args = statistics()] { backend_.cross_entropy_statistics(args); };
  });
  meter_.stream("cross entropy backward", 2 * bytes, [=, this]() -> Call {
    const kernels::CrossEntropyStatistics known = statistics();
    backend_.cross_entropy_statistics(known);
    const kernels::CrossEntropyBackward args{.logits = known.logits,
                                             .columns = known.columns,
                                             .labels = known.labels,
                                             .max = known.max,
                                             .sum = known.sum};
    return [this, args] { backend_.cross_entropy_backward(args); };
  });
  meter_.stream("cross entropy, both", 2 * bytes, [=, this]() -> Call {
    const kernels::CrossEntropyStatisticsBackward args{.statistics = statistics(), .scale = 1e-3};
    return [this, args] { backend_.cross_entropy_statistics_backward(args); };
  });
}

// Over 64 million parameters.
void optimizer(Meter& meter, DType dtype) {
  device::Backend& backend = meter.backend();
  constexpr std::int64_t kCount = 64'000'000;
  const Shape shape{kCount};
  const double copy = dtype == DType::f32 ? 0.0 : static_cast<double>(size_of(dtype));
  meter.stream("adamw of 64e6", kCount * (7 * kWide + copy), [&]() -> Call {
    const kernels::AdamW args{.weight = meter.random(shape, DType::f32),
                              .gradient = meter.random(shape, DType::f32),
                              .m = meter.zeros(shape, DType::f32),
                              .v = meter.zeros(shape, DType::f32),
                              .copy = copy > 0 ? meter.zeros(shape, dtype) : Tensor{},
                              .learning_rate = 1e-6};
    return [&backend, args] { backend.adamw(args); };
  });
  meter.stream("sgd of 64e6", kCount * (5 * kWide + copy), [&]() -> Call {
    const kernels::Sgd args{.weight = meter.random(shape, DType::f32),
                            .gradient = meter.random(shape, DType::f32),
                            .m = meter.zeros(shape, DType::f32),
                            .copy = copy > 0 ? meter.zeros(shape, dtype) : Tensor{},
                            .learning_rate = 1e-6,
                            .momentum = 0.9};
    return [&backend, args] { backend.sgd(args); };
  });
  meter.stream("lamb direction of 64e6", kCount * 7 * kWide, [&]() -> Call {
    const kernels::LambDirection args{.weight = meter.random(shape, DType::f32),
                                      .gradient = meter.random(shape, DType::f32),
                                      .m = meter.zeros(shape, DType::f32),
                                      .v = meter.zeros(shape, DType::f32)};
    return [&backend, args] { backend.lamb_direction(args); };
  });
  meter.stream("squared sum of 64e6", kCount * kWide, [&]() -> Call {
    const kernels::SquaredSum args{.x = meter.random(shape, DType::f32),
                                   .out = meter.zeros({1}, DType::f64)};
    return [&backend, args] { backend.squared_sum(args); };
  });
  meter.stream("zero count of 64e6", kCount * kWide, [&]() -> Call {
    const kernels::ZeroCount args{.x = meter.random(shape, DType::f32),
                                  .out = meter.zeros({1}, DType::f64)};
    return [&backend, args] { backend.zero_count(args); };
  });
  meter.stream("checksum of 64e6", kCount * kWide, [&]() -> Call {
    const kernels::Checksum args{
        .x = meter.random(shape, DType::f32),
        .out = static_cast<std::uint64_t*>(meter.zeros({1}, DType::f64).data)};
    return [&backend, args] { backend.checksum(args); };
  });
  meter.stream("random normal of 64e6", kCount * kWide, [&]() -> Call {
    const kernels::RandomNormal args{.out = meter.zeros({kCount / 1000, 1000}, DType::f32),
                                     .width = 1000};
    return [&backend, args] { backend.random_normal(args); };
  });
  meter.stream("cast of 64e6", kCount * (kWide + static_cast<double>(size_of(dtype))),
               [&]() -> Call {
                 const kernels::Cast args{.x = meter.random(shape, DType::f32),
                                          .out = meter.zeros(shape, dtype)};
                 return [&backend, args] { backend.cast(args); };
               });
  if (copy > 0)
    meter.stream("widening cast of 64e6", kCount * (kWide + copy), [&]() -> Call {
      const kernels::Cast args{.x = meter.random(shape, dtype),
                               .out = meter.zeros(shape, DType::f32)};
      return [&backend, args] { backend.cast(args); };
    });
  meter.stream("zero of 64e6", kCount * kWide, [&]() -> Call {
    return [&backend, x = meter.zeros(shape, DType::f32)] { backend.zero(x); };
  });
}

}  // namespace

void measure_kernels(const Settings& settings, double dropout) {
  Meter meter(settings);
  for (const Model& model : kModels) {
    Rows rows(meter, model, settings.dtype, dropout);
    rows.attention(model.sequence);
    if (model.bert) {
      rows.mlp();
      continue;
    }
    if (model.kv_heads > 0) {
      rows.llama();
      continue;
    }
    rows.attention(model.sequence / 4);
    rows.cached_attention();
    rows.norms();
    rows.dropouts();
    rows.mlp();
    if (settings.dtype == DType::bf16 && meter.gpu().capability >= 89) rows.fp8();
    rows.embeddings();
    if (&model == &kModels.front()) rows.cross_entropy();
  }
  optimizer(meter, settings.dtype);
  meter.print();
}

}  // namespace trireme::bench::gpu
