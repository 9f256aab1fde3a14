// Rows of a model's layers and embeddings.
#include <vector>

#include "bench/kernel_rows.hpp"

namespace trireme::bench {

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
  meter_.gemm(
      name("attention forward") + of, 2 * flops, [=, this]() -> Call { return call(forward()); },
      model_.layers);
  meter_.gemm(
      name("attention backward") + of, 5 * flops,
      [=, this]() -> Call {
        const kernels::AttentionForward saved = forward();
        call(saved)();
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
        return call(args);
      },
      model_.layers);
}

void Rows::cached_attention() {
  // One new token for each sample; the caches are read once.
  meter_.stream(name("attention cached"), 2 * activation_bytes_, [=, this]() -> Call {
    constexpr std::int64_t kPositions = 64;
    const std::int64_t d = model_.hidden / model_.heads,
                       columns = (model_.sequence + kPositions - 1) / kPositions;
    const std::int64_t elements = model_.heads * kPositions * d;
    std::vector<std::int32_t> lines, positions, table;
    for (std::int64_t i = 0; i < model_.batch; ++i) {
      lines.push_back(static_cast<std::int32_t>(i));
      positions.push_back(static_cast<std::int32_t>(model_.sequence - 1));
    }
    for (std::int64_t i = 0; i < model_.batch * columns; ++i)
      table.push_back(static_cast<std::int32_t>(i));
    const Tensor cache =
        meter_.random({model_.batch * columns * 2, model_.heads, kPositions, d}, dtype_);
    const auto part = [&](std::int64_t block) {
      return cache.rows(block, 1).view({model_.heads, kPositions, d});
    };
    const kernels::AttentionPaged args{
        .qkv = meter_.random({model_.batch, 3 * model_.hidden}, dtype_),
        .cache = {.keys = part(0),
                  .values = part(1),
                  .stride = 2 * elements,
                  .table = meter_.upload(table),
                  .columns = columns},
        .rows = {.lines = meter_.upload(lines), .positions = meter_.upload(positions)},
        .out = meter_.zeros({model_.batch, model_.hidden}, dtype_),
        .heads = model_.heads,
        .kv_heads = model_.heads};
    return call(args);
  });
}

void Rows::norms() {
  meter_.stream(
      name("layernorm forward"), 2 * activation_bytes_,
      [this]() -> Call {
        const kernels::LayerNormForward args{.x = activation(),
                                             .weight = weight(),
                                             .bias = weight(),
                                             .out = activation(),
                                             .mean = per_token(),
                                             .rstd = per_token()};
        return call(args);
      },
      2 * model_.layers + 1);
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
    return call(args);
  };
  meter_.stream(
      name("layernorm backward"), 4 * activation_bytes_, [=] { return backward(false); },
      2 * model_.layers + 1);
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
  meter_.stream(
      name("bias dropout residual"), 3 * activation_bytes_,
      [=, this]() -> Call { return call(sum()); }, 2 * model_.layers);
  meter_.stream(name("bias dropout residual norm"), 4 * activation_bytes_, [=, this]() -> Call {
    const kernels::BiasDropoutResidualNorm args{.sum = sum(),
                                                .weight = weight(),
                                                .norm_bias = weight(),
                                                .norm = activation(),
                                                .mean = per_token(),
                                                .rstd = per_token()};
    return call(args);
  });
  meter_.stream(
      name("dropout backward"), 2 * activation_bytes_,
      [this]() -> Call {
        const kernels::DropoutBackward args{
            .dout = activation(), .dx = activation(), .dropout = dropout(DropoutSite::mlp)};
        return call(args);
      },
      2 * model_.layers);
  meter_.stream(
      name("bias gradient"), activation_bytes_,
      [this]() -> Call {
        const kernels::BiasGradient args{.dout = activation(), .dbias = gradient()};
        return call(args);
      },
      2 * model_.layers);
  meter_.stream(
      name("bias gradient of qkv"), 3 * activation_bytes_,
      [this]() -> Call {
        const Shape qkv{model_.tokens(), model_.qkv()};
        const kernels::BiasGradient args{
            .dout = meter_.random(qkv, dtype_),
            .dbias = meter_.zeros({qkv[1]}, accumulation_type(dtype_))};
        return call(args);
      },
      model_.layers);
}

void Rows::mlp() {
  const Shape wider{model_.tokens(), 4 * model_.hidden};
  const auto function = model_.bert ? kernels::Activation::gelu : kernels::Activation::gelu_tanh;
  meter_.stream(
      name("gelu forward"), 8 * activation_bytes_,
      [=, this]() -> Call {
        const kernels::GeluForward args{.x = meter_.random(wider, dtype_),
                                        .out = meter_.zeros(wider, dtype_),
                                        .function = function};
        return call(args);
      },
      model_.layers);
  meter_.stream(
      name("gelu backward"), 12 * activation_bytes_,
      [=, this]() -> Call {
        const kernels::GeluBackward args{
            .dout = meter_.random(wider, dtype_),
            .x = meter_.random(wider, dtype_),
            .dx = meter_.zeros(wider, dtype_),
            .dbias = meter_.zeros({wider[1]}, accumulation_type(dtype_)),
            .function = function};
        return call(args);
      },
      model_.layers);
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
    return call(args);
  });
  meter_.gemm(name("linear gelu gradient"), flops, [=, this]() -> Call {
    const kernels::LinearGeluGradient args{
        .dy = meter_.random(narrow, dtype_),
        .weight = meter_.random({narrow[1], wider[1]}, dtype_),
        .fc1_out = meter_.random(wider, dtype_),
        .dfc1_out = meter_.zeros(wider, dtype_),
        .dbias = meter_.zeros({wider[1]}, accumulation_type(dtype_)),
        .function = function};
    return call(args);
  });
  meter_.gemm(name("linear weight gradient"), flops, [=, this]() -> Call {
    const kernels::LinearWeightGradient args{
        .x = meter_.random(wider, dtype_),
        .dy = meter_.random(narrow, dtype_),
        .dweight = meter_.zeros({narrow[1], wider[1]}, accumulation_type(dtype_)),
        .dbias = gradient()};
    return call(args);
  });
  if (dtype_ == accumulation_type(dtype_)) return;
  meter_.gemm(name("linear weight gradient, narrow"), flops, [=, this]() -> Call {
    const kernels::LinearWeightGradient args{.x = meter_.random(wider, dtype_),
                                             .dy = meter_.random(narrow, dtype_),
                                             .dweight = meter_.zeros({narrow[1], wider[1]}, dtype_),
                                             .dbias = gradient()};
    return call(args);
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
    return call(args);
  });
  meter_.stream(name("rms norm backward"), 4 * activation_bytes_, [this]() -> Call {
    const kernels::LayerNormBackward args{.dout = activation(),
                                          .x = activation(),
                                          .weight = weight(),
                                          .rstd = per_token(),
                                          .dx = activation(),
                                          .dweight = gradient(),
                                          .kind = kernels::NormKind::rms};
    return call(args);
  });
  meter_.stream(name("residual rms norm"), 4 * activation_bytes_, [this]() -> Call {
    const kernels::BiasDropoutResidualNorm args{
        .sum = {.x = activation(), .residual = activation(), .out = activation()},
        .weight = weight(),
        .norm = activation(),
        .rstd = per_token(),
        .kind = kernels::NormKind::rms};
    return call(args);
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
    return call(args);
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
    return call(args);
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
    return call(args);
  });
  const Shape inner{model_.tokens(), model_.ffn}, both{model_.tokens(), 2 * model_.ffn};
  const double inner_bytes = token_bytes * static_cast<double>(model_.ffn);
  meter_.stream(name("swiglu forward"), 3 * inner_bytes, [=, this]() -> Call {
    const kernels::GatedForward args{.x = meter_.random(both, dtype_),
                                     .out = meter_.zeros(inner, dtype_)};
    return call(args);
  });
  meter_.stream(name("swiglu backward"), 5 * inner_bytes, [=, this]() -> Call {
    const kernels::GatedBackward args{.dout = meter_.random(inner, dtype_),
                                      .x = meter_.random(both, dtype_),
                                      .dx = meter_.zeros(both, dtype_)};
    return call(args);
  });
}

void Rows::embeddings() {
  const Shape table{kRowsPaddedVocabulary, model_.hidden},
      positions{model_.sequence, model_.hidden};
  const double wide_bytes = sizeof(float) * static_cast<double>(activation_.size());
  meter_.stream(
      name("embedding forward"), 2 * activation_bytes_,
      [=, this]() -> Call {
        const kernels::EmbeddingForward args{.ids = meter_.ids(model_.tokens(), kRowsVocabulary),
                                             .table = meter_.random(table, dtype_),
                                             .out = activation()};
        return call(args);
      },
      ends());
  meter_.stream(
      name("embedding backward"), activation_bytes_ + 2 * wide_bytes,
      [=, this]() -> Call {
        const kernels::EmbeddingBackward args{
            .ids = meter_.ids(model_.tokens(), kRowsVocabulary),
            .dout = activation(),
            .dtable = meter_.zeros(table, accumulation_type(dtype_))};
        return call(args);
      },
      ends());
  meter_.stream(
      name("position and dropout"), 2 * activation_bytes_,
      [=, this]() -> Call {
        const kernels::PositionDropout args{.x = activation(),
                                            .position = meter_.random(positions, dtype_),
                                            .dropout = dropout(DropoutSite::embedding)};
        return call(args);
      },
      ends());
  meter_.stream(
      name("position backward"), activation_bytes_,
      [=, this]() -> Call {
        const kernels::PositionBackward args{
            .dout = activation(), .dposition = meter_.zeros(positions, accumulation_type(dtype_))};
        return call(args);
      },
      ends());
}

}  // namespace trireme::bench
