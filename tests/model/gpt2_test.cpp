// The model against an independent GPT-2: tests/data/gpt2_reference/make_reference.py.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <fstream>

#include "deck/model.hpp"
#include "serial_gpt.hpp"
#include "tensors.hpp"

namespace trireme::test {
namespace {

using nlohmann::json;
using Values = std::vector<double>;

json read_gpt2_reference() {
  std::ifstream file(TRIREME_SOURCE_DIR "/tests/data/gpt2_reference/reference.json");
  return json::parse(file);
}

/// The logical name of one of GPT-2's weights.
std::string logical_name(std::string name) {
  const std::pair<const char*, const char*> replacements[] = {
      {"wte", "embedding/word"},
      {"wpe", "embedding/position"},
      {"h.", "layers/"},
      {".ln_1.", "/norm1/"},
      {".ln_2.", "/norm2/"},
      {".attn.c_attn.", "/attention/qkv/"},
      {".mlp.c_fc.", "/mlp/up/"},
      {".attn.c_proj.", "/attention/projection/"},
      {".mlp.c_proj.", "/mlp/down/"},
      {"ln_f.", "final_norm/"}};
  for (const auto& [from, to] : replacements)
    if (const auto found = name.find(from); found != std::string::npos)
      name.replace(found, std::string(from).size(), to);
  return name;
}

/// GPT-2's Conv1D multiplies by weights [in, out]; ours are [out, in].
bool is_conv1d(const std::string& name) {
  return name.find(".c_") != std::string::npos && name.ends_with(".weight");
}

/// Values of the shape in the file as the logical tensor has them: transposed for Conv1D.
Values to_logical(const std::string& name, const json& shape, const Values& values) {
  if (!is_conv1d(name)) return values;
  const std::size_t in = shape[0], out = shape[1];
  Values transposed(values.size());
  for (std::size_t i = 0; i < in; ++i)
    for (std::size_t o = 0; o < out; ++o) transposed[o * in + i] = values[i * out + o];
  return transposed;
}

/// [b, s] or [b, s, ...] with `width` values per token, as [s, b, ...].
template <typename T>
std::vector<T> sequence_major(const std::vector<T>& x, int batch, int sequence, int width) {
  std::vector<T> out(x.size());
  for (int b = 0; b < batch; ++b)
    for (int s = 0; s < sequence; ++s)
      std::copy_n(&x[(b * sequence + s) * width], width, &out[(s * batch + b) * width]);
  return out;
}

std::vector<std::int32_t> tokens(const json& rows, int batch, int sequence) {
  std::vector<std::int32_t> flat;
  for (const json& row : rows)
    for (const json& id : row) flat.push_back(id);
  return sequence_major(flat, batch, sequence, 1);
}

class Gpt2Reference : public ::testing::TestWithParam<std::pair<DType, double>> {};

TEST_P(Gpt2Reference, LogitsLossAndGradients) {
  const auto [dtype, tolerance] = GetParam();
  const json reference = read_gpt2_reference();
  const int batch = reference["batch"], sequence = reference["sequence"];
  const model::Gpt2Config config{.layers = reference["layers"],
                                 .hidden = reference["hidden"],
                                 .heads = reference["heads"],
                                 .ffn = 4 * reference["hidden"].get<int>(),
                                 .sequence = sequence,
                                 .positions = reference["positions"],
                                 .vocab = reference["vocab"],
                                 .layernorm_eps = reference["layernorm_eps"]};
  SerialGpt gpt(config, batch, dtype);
  EXPECT_EQ(gpt.parameters().table().size(), reference["weights"].size());
  for (const auto& [name, weight] : reference["weights"].items())
    assign(gpt.parameters()[logical_name(name)].weight,
           to_logical(name, weight["shape"], weight["values"]));

  const auto ids = tokens(reference["ids"], batch, sequence);
  const auto labels = tokens(reference["labels"], batch, sequence);
  const model::MicroBatch micro_batch{.ids = ids, .labels = labels};
  const double loss = gpt.forward(micro_batch);
  EXPECT_NEAR(loss, reference["loss"].get<double>(), tolerance * loss);

  const Values logits = sequence_major(reference["logits"].get<Values>(), batch, sequence,
                                       static_cast<int>(config.vocab));
  EXPECT_LT(distance(to_doubles(gpt.stage().logits()), logits), tolerance * norm(logits));

  gpt.backward(micro_batch);
  for (const auto& [name, values] : reference["gradients"].items()) {
    const Values expected = to_logical(name, reference["weights"][name]["shape"], values);
    const Values gradient = to_doubles(gpt.parameters()[logical_name(name)].gradient);
    EXPECT_LT(distance(gradient, expected), tolerance * norm(expected)) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Precisions, Gpt2Reference,
                         ::testing::Values(std::pair{DType::f64, 1e-10},
                                           std::pair{DType::f32, 1e-5}),
                         [](const auto& info) { return std::string(name_of(info.param.first)); });

TEST(ModelFlops, EqualsThePublishedForm) {
  for (const double s : {128.0, 1024.0}) {
    const double l = 12, h = 768, v = 50257;
    EXPECT_DOUBLE_EQ(
        deck::gpt_flops_per_token(12, 768, 4 * 768, static_cast<std::int64_t>(s), 50257),
        72 * l * h * h * (1 + s / (12 * h) + v / (12 * l * h)));
  }
}

TEST(ModelFlops, CountsMultiplicationsOfATinyModel) {
  // Forward per token: matrices 4 h^2 + 8 h^2, scores and values over half of s keys, the head.
  const double l = 2, h = 8, s = 16, v = 32;
  const double forward = 2 * (l * (12 * h * h + 2 * (s / 2) * h) + h * v);
  EXPECT_DOUBLE_EQ(deck::gpt_flops_per_token(2, 8, 32, 16, 32), 3 * forward);
}

// Counted by hand: attention 4 h^2 + s h, the MLP 2 h f, the head h V multiplications and as many
// additions, three times.
TEST(ModelFlops, CountsTheMlpThatTheModelHas) {
  EXPECT_DOUBLE_EQ(deck::gpt_flops_per_token(2, 60, 100, 29, 211), 413640);
  EXPECT_DOUBLE_EQ(deck::gpt_flops_per_token(2, 60, 240, 29, 211), 615240);
}

}  // namespace
}  // namespace trireme::test
