// BERT against an independent one: tests/data/bert_reference/make_reference.py.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "model/families/registry.hpp"
#include "serial_gpt.hpp"
#include "tensors.hpp"

namespace trireme::test {
namespace {

using nlohmann::json;
using Values = std::vector<double>;
using Ids = std::vector<std::int32_t>;

json read_reference() {
  std::ifstream file(TRIREME_SOURCE_DIR "/tests/data/bert_reference/reference.json");
  return json::parse(file);
}

/// What the file says with norms after the sublayers, or before them.
struct Reference {
  const json& file;
  const json& run;

  std::int64_t size(const char* name) const { return file.at(name); }
  std::int64_t batch() const { return size("batch"); }
  std::int64_t sequence() const { return size("sequence"); }

  model::BertConfig config(bool post_norm) const {
    return {.layers = size("layers"),
            .hidden = size("hidden"),
            .heads = size("heads"),
            .ffn = size("ffn"),
            .sequence = sequence(),
            .positions = size("positions"),
            .vocab = size("vocab"),
            .token_types = size("token_types"),
            .layernorm_eps = file.at("layernorm_eps"),
            .post_norm = post_norm};
  }

  /// [b, s] as [s, b].
  Ids tokens(const char* name) const {
    const auto rows = file.at(name).get<std::vector<Ids>>();
    Ids out;
    for (std::int64_t i = 0; i < sequence(); ++i)
      for (std::int64_t j = 0; j < batch(); ++j) out.push_back(rows[j][i]);
    return out;
  }

  /// The values [b, s, n] of the tokens that are not padding.
  Values valid(const char* name) const {
    const Values all = run.at(name);
    const auto n = std::ssize(all) / (batch() * sequence());
    Values out;
    for (std::int64_t j = 0; j < batch(); ++j) {
      const auto first = all.begin() + j * sequence() * n;
      out.insert(out.end(), first, first + file.at("lengths")[j].get<int>() * n);
    }
    return out;
  }
  /// The same of ours, [s, b, n].
  Values valid(const Tensor& tensor) const {
    const Values all = to_doubles(tensor);
    const auto n = std::ssize(all) / (batch() * sequence());
    Values out;
    for (std::int64_t j = 0; j < batch(); ++j)
      for (std::int64_t i = 0; i < file.at("lengths")[j].get<int>(); ++i) {
        const auto first = all.begin() + (i * batch() + j) * n;
        out.insert(out.end(), first, first + n);
      }
    return out;
  }
};

void expect_close(const Values& ours, const Values& expected, double tolerance, const char* name) {
  ASSERT_EQ(ours.size(), expected.size()) << name;
  EXPECT_LT(distance(ours, expected), tolerance * norm(expected)) << name;
}

struct Precise {
  DType dtype;
  double tolerance, gradient_tolerance;  // of each tensor's norm
};

class BertReference : public ::testing::TestWithParam<std::tuple<bool, Precise>> {};

TEST_P(BertReference, HiddenStatesLossesAndGradients) {
  const auto& [post_norm, precise] = GetParam();
  const json file = read_reference();
  const Reference reference{file, file.at(post_norm ? "post_norm" : "pre_norm")};
  SerialGpt bert(bert_spec(reference.config(post_norm)), reference.batch(), precise.dtype);
  const json& weights = reference.run.at("weights");
  EXPECT_EQ(bert.parameters().table().size(), weights.size());
  for (const auto& [name, values] : weights.items())
    assign(bert.parameters()[name].weight, values.get<Values>());

  const Ids ids = reference.tokens("ids"), labels = reference.tokens("labels"),
            types = reference.tokens("types"), lengths = file.at("lengths"),
            sentence_labels = file.at("sentence_labels");
  const model::MicroBatch batch{.ids = ids,
                                .labels = labels,
                                .token_types = types,
                                .lengths = lengths,
                                .sentence_labels = sentence_labels};
  const double loss = bert.forward(batch);
  EXPECT_NEAR(loss, reference.run.at("loss").get<double>(), precise.tolerance * loss);
  const double sentence_loss =
      bert.stage().sentence_loss_sum() / SerialGpt::counted_sentences(batch);
  EXPECT_NEAR(sentence_loss, reference.run.at("sentence_loss").get<double>(),
              precise.tolerance * sentence_loss);
  expect_close(reference.valid(bert.stage().output(0)), reference.valid("hidden_states"),
               precise.tolerance, "hidden states");
  expect_close(reference.valid(bert.stage().logits()), reference.valid("logits"), precise.tolerance,
               "logits");

  bert.backward(batch);
  for (const auto& [name, values] : reference.run.at("gradients").items()) {
    const Values gradient = to_doubles(bert.parameters()[name].gradient);
    const Values expected = values;
    expect_close(without_key(name, gradient), without_key(name, expected),
                 precise.gradient_tolerance, name.c_str());
  }
}

// The output projection of the tokens with labels alone gives the loss and gradients of all.
TEST(Bert, ReadsOnlyTokensWithLabels) {
  const json file = read_reference();
  const Reference reference{file, file.at("pre_norm")};
  const Ids ids = reference.tokens("ids"), labels = reference.tokens("labels"),
            types = reference.tokens("types"), lengths = file.at("lengths"),
            sentence_labels = file.at("sentence_labels");
  const auto count = std::count_if(labels.begin(), labels.end(), [](int id) { return id >= 0; });
  const std::int64_t most = (count + reference.batch() - 1) / reference.batch();
  ASSERT_LT(most, reference.sequence());
  const model::MicroBatch batch{.ids = ids,
                                .labels = labels,
                                .token_types = types,
                                .lengths = lengths,
                                .sentence_labels = sentence_labels};
  model::ModelSpec spec = bert_spec(reference.config(false));
  for (const std::int64_t at_a_time : {1000, 2}) {
    SerialGpt all(spec, reference.batch(), DType::f64);
    spec.head.max_labels = most;
    SerialGpt few(spec, reference.batch(), DType::f64, at_a_time);
    spec.head.max_labels = 0;
    for (const auto& [name, values] : reference.run.at("weights").items())
      for (SerialGpt* model : {&all, &few})
        assign(model->parameters()[name].weight, values.get<Values>());
    EXPECT_NEAR(few.forward(batch), all.forward(batch), 1e-12);
    few.backward(batch);
    all.backward(batch);
    for (const auto& [name, weight] : reference.run.at("weights").items())
      expect_close(without_key(name, to_doubles(few.parameters()[name].gradient)),
                   without_key(name, to_doubles(all.parameters()[name].gradient)), 1e-12,
                   name.c_str());
  }
}

TEST(Bert, OutputProjectionReadsWhatTheDeckMasks) {
  deck::Deck deck;
  deck.model.family = deck::Family::bert;
  deck.model.sequence = 512;
  deck.model.bert = {.binary_head = true, .post_norm = false, .deep_init = false};
  const auto most = [&] { return model::bert_config(deck, {.size = 100}).max_labels; };
  deck.data.bert.mask_probability.reset();
  deck.data.bert.max_predictions.reset();
  EXPECT_EQ(most(), 0) << "records may have any number";
  deck.data.bert.mask_probability = 0.15;
  EXPECT_EQ(most(), 77);
  deck.data.bert.max_predictions = 80;
  EXPECT_EQ(most(), 80);
  deck.data.bert.max_predictions = 1000;
  EXPECT_EQ(most(), 512);
}

INSTANTIATE_TEST_SUITE_P(Precisions, BertReference,
                         ::testing::Combine(::testing::Bool(),
                                            ::testing::Values(Precise{DType::f64, 1e-10, 1e-10},
                                                              Precise{DType::f32, 1e-5, 1e-4})),
                         [](const auto& info) {
                           return fmt::format("{}_{}",
                                              std::get<0>(info.param) ? "post_norm" : "pre_norm",
                                              name_of(std::get<1>(info.param).dtype));
                         });

TEST(Bert, SpecSaysWhatTheOptionsChange) {
  model::BertConfig config{.layers = 8,
                           .hidden = 32,
                           .heads = 4,
                           .ffn = 64,
                           .init = {.deviation = 0.02, .outputs = model::InitScheme::normal}};
  EXPECT_TRUE(bert_spec(config).head.norm);
  EXPECT_FALSE(bert_spec(config).embedding.sum_norm);
  EXPECT_EQ(bert_spec(config).init.output_deviation(0, 8), 0.02);
  config.init.outputs = model::InitScheme::scaled;
  config.post_norm = true;
  config.binary_head = config.tie_embeddings = false;
  const model::ModelSpec spec = bert_spec(config);
  EXPECT_EQ(spec.init.output_deviation(7, 8), 0.005);
  EXPECT_FALSE(spec.head.norm);
  EXPECT_TRUE(spec.embedding.sum_norm);
  std::set<std::string> names;
  for (const auto& parameter : model::declare_parameters(spec)) names.insert(parameter.name);
  EXPECT_TRUE(names.contains("head/weight") && names.contains("head/bias"));
  EXPECT_FALSE(names.contains("pooler/weight") || names.contains("final_norm/weight"));
}

// Counted by hand: per layer 12 h^2 weights with ffn = 4 h, the head's h^2 and h V.
TEST(Bert, FlopsCountSixPerWeightAndAttentionInFull) {
  const model::ModelSpec spec = model::bert_spec(
      {.layers = 2, .hidden = 8, .heads = 2, .ffn = 32, .sequence = 16, .vocab = 50});
  EXPECT_DOUBLE_EQ(model::bert_flops_per_token(spec),
                   6.0 * (2 * 12 * 64 + 64 + 8 * 50) + 2 * 12 * 16 * 8);
}

TEST(Bert, RefusesToRecomputeNormsAfterSublayers) {
  const model::BertConfig config{.layers = 2,
                                 .hidden = 8,
                                 .heads = 2,
                                 .ffn = 16,
                                 .sequence = 8,
                                 .positions = 8,
                                 .vocab = 20,
                                 .post_norm = true};
  EXPECT_THROW(SerialGpt(bert_spec(config), 2, DType::f32, 1000, {model::Recompute::What::norms}),
               DeckError);
}

}  // namespace
}  // namespace trireme::test
