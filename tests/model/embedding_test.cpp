// Embeddings that are looked up in fp32 master weights (StageConfig::fp32_embedding).
#include <gtest/gtest.h>

#include "model/families/registry.hpp"
#include "serial_gpt.hpp"
#include "tensors.hpp"

namespace trireme::test {
namespace {

using Ids = std::vector<std::int32_t>;
using Values = std::vector<double>;

constexpr std::int64_t kSequence = 8, kBatch = 3, kHidden = 16, kVocab = 40;

model::ModelSpec bert(bool post_norm) {
  return model::bert_spec({.layers = 1,
                           .hidden = kHidden,
                           .heads = 2,
                           .ffn = 32,
                           .sequence = kSequence,
                           .positions = kSequence,
                           .vocab = kVocab,
                           .hidden_dropout = 0.25,
                           .init = {.deviation = 0.5},
                           .post_norm = post_norm});
}

model::ModelSpec gpt2(bool embedding_norm, double dropout) {
  return model::gpt2_spec({.layers = 1,
                           .hidden = kHidden,
                           .heads = 2,
                           .ffn = 32,
                           .sequence = kSequence,
                           .positions = kSequence,
                           .vocab = kVocab,
                           .hidden_dropout = dropout,
                           .init = {.deviation = 0.5},
                           .embedding_layernorm = embedding_norm});
}

/// The embedding's output for a fixed batch, of different tokens each, with dropout.
struct Embedded {
  Ids ids, labels = Ids(kSequence * kBatch, 1), types, lengths = Ids(kBatch, kSequence),
           sentences = Ids(kBatch, 0);

  Embedded() {
    for (std::int64_t t = 0; t < kSequence * kBatch; ++t) {
      ids.push_back(static_cast<std::int32_t>((7 * t + 3) % kVocab));
      types.push_back(static_cast<std::int32_t>(t % 2));
    }
  }

  Values of(SerialGpt& model) {
    model.forward({.ids = ids,
                   .labels = labels,
                   .first_sample = 5,
                   .token_types = types,
                   .lengths = lengths,
                   .sentence_labels = sentences});
    return to_doubles(model.stage().input(0));
  }
};

/// The nearest bf16 values.
Values rounded(const Values& values) {
  const std::vector<float> floats(values.begin(), values.end());
  std::vector<std::uint16_t> halves(floats.size());
  convert_from_float(floats.data(), std::ssize(floats), DType::bf16, halves.data());
  std::vector<float> back(floats.size());
  convert_to_float(halves.data(), std::ssize(halves), DType::bf16, back.data());
  return {back.begin(), back.end()};
}

/// A model in bf16 whose weights are those of `master`, rounded.
std::unique_ptr<SerialGpt> halves_of(SerialGpt& master, const model::ModelSpec& spec, bool fp32) {
  auto model = std::make_unique<SerialGpt>(spec, kBatch, DType::bf16, 1000, model::Recompute(),
                                           /*fp32_embedding=*/fp32);
  for (const model::Parameter& parameter : master.parameters().table())
    assign(model->parameters()[parameter.name].weight,
           to_doubles(master.parameters()[parameter.name].weight));
  if (fp32)
    model->stage().set_master_weights(
        [&](const std::string& name) { return master.parameters()[name].weight; });
  return model;
}

TEST(Fp32Embedding, IsTheFp32SumRoundedOnce) {
  Embedded batch;
  for (const auto& spec : {bert(/*post_norm=*/false), gpt2(false, 0.25), gpt2(false, 0.0)}) {
    SerialGpt fp32(spec, kBatch, DType::f32);
    fp32.parameters().initialize(11);
    const Values expected = rounded(batch.of(fp32));
    EXPECT_EQ(batch.of(*halves_of(fp32, spec, /*fp32=*/true)), expected);
    EXPECT_NE(batch.of(*halves_of(fp32, spec, /*fp32=*/false)), expected);
  }
}

// The norm reads the rounded sum, as in the first Megatron-LM: a model in bf16 whose word embedding
// is that sum, and whose other embeddings are zero, has the same output.
TEST(Fp32Embedding, IsRoundedBeforeItsNorm) {
  Embedded batch;
  const model::ModelSpec spec = bert(/*post_norm=*/true);
  SerialGpt fp32(spec, kBatch, DType::f32);
  fp32.parameters().initialize(11);
  const auto weight = [&](const char* name) { return to_doubles(fp32.parameters()[name].weight); };
  const Values words = weight("embedding/word"), types = weight("embedding/token_type"),
               positions = weight("embedding/position");
  const auto looked_up = halves_of(fp32, spec, /*fp32=*/false);
  Values sums = to_doubles(looked_up->parameters()["embedding/word"].weight);
  for (std::int64_t t = 0; t < kSequence * kBatch; ++t)
    for (std::int64_t i = 0; i < kHidden; ++i) {
      const auto term = [&](const Values& table, std::int64_t row) {
        return static_cast<float>(table[row * kHidden + i]);
      };
      sums[batch.ids[t] * kHidden + i] =
          (term(words, batch.ids[t]) + term(types, batch.types[t])) + term(positions, t / kBatch);
    }
  const auto sum_of_model = halves_of(fp32, spec, /*fp32=*/false);
  assign(sum_of_model->parameters()["embedding/word"].weight, rounded(sums));
  for (const char* name : {"embedding/token_type", "embedding/position"}) {
    const Tensor table = sum_of_model->parameters()[name].weight;
    assign(table, Values(table.size(), 0.0));
  }
  const Values expected = batch.of(*sum_of_model);
  EXPECT_EQ(batch.of(*halves_of(fp32, spec, /*fp32=*/true)), expected);
  EXPECT_NE(batch.of(*looked_up), expected);
}

TEST(Fp32Embedding, FollowsItsNormOfTheTokens) {
  Embedded batch;
  const model::ModelSpec spec = gpt2(/*embedding_norm=*/true, 0.0);
  SerialGpt fp32(spec, kBatch, DType::f32);
  fp32.parameters().initialize(11);
  const Values exact = batch.of(fp32);
  const Values ours = batch.of(*halves_of(fp32, spec, /*fp32=*/true));
  EXPECT_LT(distance(ours, exact), 4e-3 * norm(exact));
  EXPECT_NE(ours, batch.of(*halves_of(fp32, spec, /*fp32=*/false)));
}

TEST(Fp32Embedding, NeedsItsMasterWeights) {
  Embedded batch;
  SerialGpt model(bert(false), kBatch, DType::bf16, 1000, model::Recompute(),
                  /*fp32_embedding=*/true);
  EXPECT_THROW(batch.of(model), InternalError);
}

}  // namespace
}  // namespace trireme::test
