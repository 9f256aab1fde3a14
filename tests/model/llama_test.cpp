// The Llama family against independent models: tests/data/llama_reference/make_reference.py.
#include "model/families/registry.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "serial_gpt.hpp"
#include "tensors.hpp"

namespace trireme::test {
namespace {

using nlohmann::json;
using Values = std::vector<double>;
using Ids = std::vector<std::int32_t>;

json read_llama_reference() {
  std::ifstream file(TRIREME_SOURCE_DIR "/tests/data/llama_reference/reference.json");
  return json::parse(file);
}

model::LlamaConfig config_of(const json& file, const json& run) {
  model::LlamaConfig config{.layers = file.at("layers"),
                            .hidden = file.at("hidden"),
                            .heads = file.at("heads"),
                            .kv_heads = file.at("kv_heads"),
                            .head_dim = file.at("head_dim"),
                            .ffn = file.at("ffn"),
                            .sequence = file.at("sequence"),
                            .positions = file.at("sequence"),
                            .vocab = file.at("vocab"),
                            .qkv_bias = run.value("bias", false),
                            .tie_embeddings = run.at("tied"),
                            .eps = file.at("eps")};
  if (run.contains("placement")) config.norm_placement = model::NormPlacement::output;
  if (run.contains("qk_norm"))
    config.qk_norm = run.at("qk_norm") == "width" ? model::QkNorm::width : model::QkNorm::head;
  config.rotary.theta = run.at("theta");
  if (!run.contains("scaling")) return config;
  const json& scaling = run.at("scaling");
  config.rotary = {.theta = run.at("theta"),
                   .scaling = scaling.at("type") == "yarn" ? model::PositionScaling::yarn
                                                           : model::PositionScaling::llama3,
                   .factor = scaling.at("factor"),
                   .original = scaling.at("original"),
                   .low = scaling.at("low"),
                   .high = scaling.at("high")};
  return config;
}

/// [b, s] as [s, b].
Ids tokens(const json& file, const char* name) {
  const auto rows = file.at(name).get<std::vector<Ids>>();
  Ids out;
  for (std::size_t i = 0; i < rows.front().size(); ++i)
    for (const Ids& row : rows) out.push_back(row[i]);
  return out;
}

struct LlamaPrecise {
  DType dtype;
  double tolerance, gradient_tolerance;  // of each tensor's norm
};

class LlamaReference : public ::testing::TestWithParam<std::tuple<const char*, LlamaPrecise>> {};

TEST_P(LlamaReference, LogitsLossAndGradients) {
  const auto& [name, precise] = GetParam();
  const json file = read_llama_reference();
  const json& run = file.at("models").at(name);
  const model::LlamaConfig config = config_of(file, run);
  const std::int64_t batch = file.at("batch");
  SerialGpt llama(model::llama_spec(config), batch, precise.dtype);
  EXPECT_EQ(llama.parameters().table().size(), run.at("weights").size());
  for (const auto& [weight, values] : run.at("weights").items())
    assign(llama.parameters()[weight].weight, values.get<Values>());

  const Ids ids = tokens(file, "ids"), labels = tokens(file, "labels");
  const model::MicroBatch micro_batch{.ids = ids, .labels = labels};
  const double loss = llama.forward(micro_batch);
  EXPECT_NEAR(loss, run.at("loss").get<double>(), precise.tolerance * loss);
  const Values all = to_doubles(llama.stage().logits()), expected = run.at("logits");
  Values logits;  // [b, s, V]
  for (std::int64_t j = 0; j < batch; ++j)
    for (std::int64_t i = 0; i < config.sequence; ++i)
      for (std::int64_t v = 0; v < config.vocab; ++v)
        logits.push_back(all[(i * batch + j) * config.vocab + v]);
  EXPECT_LT(distance(logits, expected), precise.tolerance * norm(expected));

  llama.backward(micro_batch);
  for (const auto& [weight, values] : run.at("gradients").items()) {
    const Values gradient = to_doubles(llama.parameters()[weight].gradient);
    const Values wanted = values;
    EXPECT_LT(distance(gradient, wanted), precise.gradient_tolerance * norm(wanted)) << weight;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, LlamaReference,
    ::testing::Combine(::testing::Values("llama", "qwen2", "qwen3", "olmo2"),
                       ::testing::Values(LlamaPrecise{DType::f64, 1e-9, 1e-8},
                                         LlamaPrecise{DType::f32, 1e-5, 1e-4})),
    [](const auto& info) {
      return fmt::format("{}_{}", std::get<0>(info.param), name_of(std::get<1>(info.param).dtype));
    });

// Frequencies of Llama-3.2-1B and of YaRN as transformers computes them, in fp32.
TEST(Rotary, ScalesFrequenciesAsTransformersDoes) {
  const auto frequency = [](const model::RotarySpec& spec, std::int64_t head_dim, std::int64_t i) {
    const std::vector<double> table = model::rotary_table(spec, 2, head_dim);
    return std::atan2(table[head_dim + head_dim / 2 + i], table[head_dim + i]);
  };
  const auto scale = [](const model::RotarySpec& spec, std::int64_t head_dim) {
    return model::rotary_table(spec, 1, head_dim)[0];
  };
  const model::RotarySpec llama{.theta = 5e5,
                                .scaling = model::PositionScaling::llama3,
                                .factor = 32,
                                .original = 8192,
                                .low = 1,
                                .high = 4};
  for (const auto& [i, value] : {std::pair{1, .663601279},
                                 {14, .00321144611},
                                 {15, .00129054801},
                                 {16, .000429556705},
                                 {17, 9.70828623e-05},
                                 {18, 1.94616387e-05},
                                 {31, 9.41830649e-08}})
    EXPECT_NEAR(frequency(llama, 64, i), value, 1e-6 * value) << i;
  EXPECT_EQ(scale(llama, 64), 1.0);
  const model::RotarySpec yarn{.theta = 1e6,
                               .scaling = model::PositionScaling::yarn,
                               .factor = 4,
                               .original = 32768,
                               .low = 1,
                               .high = 32};
  for (const auto& [i, value] : {std::pair{23, .00697830599},
                                 {24, .00537532149},
                                 {30, .00106436096},
                                 {35, .000246258394},
                                 {40, 4.44569851e-05},
                                 {63, 3.10234441e-07}})
    EXPECT_NEAR(frequency(yarn, 128, i), value, 1e-6 * value) << i;
  EXPECT_NEAR(scale(yarn, 128), 1.13862944, 1e-8);
}

// Two documents in one sample have the losses that they have alone.
TEST(Llama, DocumentsStandAlone) {
  model::LlamaConfig config{.layers = 2,
                            .hidden = 16,
                            .heads = 4,
                            .kv_heads = 2,
                            .head_dim = 4,
                            .ffn = 24,
                            .sequence = 8,
                            .positions = 8,
                            .vocab = 11,
                            .init = {.deviation = 0.3}};
  const Ids ids = {1, 2, 3, 0, 4, 5, 6, 7};  // 0 ends a document
  const auto loss = [&](const model::LlamaConfig& c, const Ids& ids, const Ids& labels) {
    SerialGpt llama(model::llama_spec(c), 1, DType::f64);
    for (const model::Parameter& parameter : llama.parameters().table()) {
      Values values(parameter.shape.size());
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = 0.3 * philox_normal(7, std::hash<std::string>{}(parameter.name), i);
      assign(llama.parameters()[parameter.name].weight, values);
    }
    return llama.forward({.ids = ids, .labels = labels});
  };
  Ids labels(8, -1);
  labels[6] = 5;
  model::LlamaConfig together = config, alone = config;
  together.documents = {.reset_positions = true, .reset_attention = true, .eod = 0};
  alone.sequence = 4;
  EXPECT_NEAR(loss(together, ids, labels), loss(alone, {4, 5, 6, 7}, {-1, -1, 5, -1}), 1e-12);
  EXPECT_GT(std::abs(loss(config, ids, labels) - loss(together, ids, labels)), 1e-6);
  // Rotary positions are relative: where a document begins does not matter.
  together.documents.reset_positions = false;
  EXPECT_NEAR(loss(together, ids, labels), loss(alone, {4, 5, 6, 7}, {-1, -1, 5, -1}), 1e-12);
}

TEST(Llama, HasHuggingFacesNames) {
  const auto names = [](const model::LlamaConfig& config, const std::string& wanted) {
    for (const model::Parameter& parameter : model::declare_parameters(model::llama_spec(config)))
      if (parameter.name == wanted) return model::llama_hugging_face_names(parameter);
    return std::vector<std::string>{"none"};
  };
  using Names = std::vector<std::string>;
  model::LlamaConfig config{.layers = 2, .head_dim = 4, .qkv_bias = true, .tie_embeddings = false};
  EXPECT_EQ(names(config, "embedding/word"), Names{"model.embed_tokens.weight"});
  EXPECT_EQ(names(config, "head/weight"), Names{"lm_head.weight"});
  EXPECT_EQ(names(config, "layers/1/attention/qkv/bias"),
            Names({"model.layers.1.self_attn.q_proj.bias", "model.layers.1.self_attn.k_proj.bias",
                   "model.layers.1.self_attn.v_proj.bias"}));
  EXPECT_EQ(names(config, "layers/1/mlp/gate_up/weight"),
            Names({"model.layers.1.mlp.gate_proj.weight", "model.layers.1.mlp.up_proj.weight"}));
  EXPECT_EQ(names(config, "layers/0/norm2/weight"),
            Names{"model.layers.0.post_attention_layernorm.weight"});
  for (const auto placement : {model::NormPlacement::pre, model::NormPlacement::output}) {
    config.norm_placement = placement;
    config.qk_norm = model::QkNorm::head;
    for (const model::Parameter& parameter : model::declare_parameters(model::llama_spec(config)))
      EXPECT_FALSE(model::llama_hugging_face_names(parameter).empty()) << parameter.name;
  }
  EXPECT_EQ(names(config, "layers/0/output_norm1/weight"),
            Names{"model.layers.0.post_attention_layernorm.weight"});
}

// Published counts of Llama-3.1-8B: parameters, and FLOPs with the causal half of attention.
TEST(Llama, CountsParametersAndFlops) {
  const model::ModelSpec spec = model::llama_spec({.layers = 32,
                                                   .hidden = 4096,
                                                   .heads = 32,
                                                   .kv_heads = 8,
                                                   .head_dim = 128,
                                                   .ffn = 14336,
                                                   .sequence = 8192,
                                                   .positions = 8192,
                                                   .vocab = 128256,
                                                   .tie_embeddings = false});
  EXPECT_EQ(model::count_elements(model::declare_parameters(spec)), 8030261248);
  EXPECT_DOUBLE_EQ(model::llama_flops_per_token(spec),
                   6.0 * (6979321856.0 + 128256.0 * 4096) + 32.0 * 6 * 8192 * 4096);
}

}  // namespace
}  // namespace trireme::test
