// The errors of values of one family's models that do not go together, by their text.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "decks.hpp"

namespace trireme::deck {
namespace {

TEST(DeckChecks, BertSamplesMustFit) {
  const std::vector<std::string> bert = {
      "model.family=bert", "data.tokenizer={type: wordpiece, vocab: v.txt, lowercase: true}",
      "data.tokenizer.model="};
  const auto errors = [&](std::vector<std::string> overrides) {
    overrides.insert(overrides.begin(), bert.begin(), bert.end());
    return errors_of(kSmallDeck, overrides);
  };
  EXPECT_EQ(errors({}), "");
  EXPECT_EQ(errors({"data.bert.dialect=v0", "data.bert.max_predictions=20"}), "");
  EXPECT_EQ(errors({"data.bert.dialect=tfrecord", "data.split=[1, 0, 0]"}), "");
  EXPECT_EQ(errors({"data.bert.dialect=tfrecord"}), "");
  EXPECT_EQ(errors({"model.bert.binary_head=false", "data.bert.max_ngram=1"}), "");
  const auto expect_error = [&](const std::vector<std::string>& overrides,
                                const std::string& text) {
    const std::string found = errors(overrides);
    EXPECT_NE(found.find(text), std::string::npos) << found;
  };
  expect_error({"data.bert.dialect=v0", "data.bert.max_ngram=2"},
               "'data.bert.max_ngram' has no effect with data.bert.dialect = v0; leave it out");
  expect_error({"data.bert.dialect=tfrecord", "data.split=1", "data.bert.mask_probability=0.2"},
               "'data.bert.mask_probability' has no effect with data.bert.dialect = tfrecord");
  expect_error({"data.bert.sentence_task=next"},
               "data.bert.sentence_task = next is not made by data.bert.dialect = megatron (try "
               "order)");
  expect_error({"data.bert.sentence_task=none"},
               "data.bert.sentence_task = none does not fit model.bert.binary_head = true");
  expect_error({"data.bert.dialect=v1"}, "data.bert.dialect = v1: allowed are megatron, v0");
  expect_error({"data.seed=2147483647"},
               "data.seed = 2147483647: the maximum of data.bert.dialect = megatron is 2147483646");
  expect_error({"data.bert.dialect=tfrecord", "data.split=969,30,1"},
               "data.split = 969,30,1: TFRecord files are not divided");
  expect_error({"data.reset_positions=true"}, "have no effect with model.family = bert");
  expect_error({"data.eod_loss=false"}, "data.eod_loss = false has no effect with model.family");
  expect_error(
      {"data.tokenizer={type: bytes}", "data.tokenizer.vocab=", "data.tokenizer.lowercase="},
      "model.family = bert masks whole words: give data.tokenizer.type = wordpiece");
  EXPECT_NE(errors_of(kSmallDeck, {"data.bert.dialect=v0"})
                .find("'data.bert.dialect' needs model.family = bert, but it is gpt; leave it out"),
            std::string::npos);
}

TEST(DeckChecks, BertModelMustFit) {
  const auto errors = [&](std::vector<std::string> overrides) {
    overrides.insert(overrides.begin(), {"model.family=bert", "data.tokenizer.model=",
                                         "data.tokenizer={type: wordpiece, vocab: v.txt, "
                                         "lowercase: true}"});
    return errors_of(kSmallDeck, overrides);
  };
  EXPECT_EQ(errors({"model.bert={post_norm: true, deep_init: true}", "recompute.granularity=full"}),
            "");
  EXPECT_EQ(errors({"recompute.granularity=selective"}), "");
  EXPECT_EQ(errors({"optimizer.rate.head=0.5", "optimizer.decay.head=2"}), "")
      << "BERT's heads have matrices that are not tied";
  const auto expect_error = [&](const std::vector<std::string>& overrides,
                                const std::string& text) {
    const std::string found = errors(overrides);
    EXPECT_NE(found.find(text), std::string::npos) << found;
  };
  expect_error({"model.bert.post_norm=true", "recompute.granularity=selective"},
               "recompute.granularity = selective recomputes norms before the sublayers, but "
               "model.bert.post_norm = true has them after");
  EXPECT_EQ(errors({"run.device=cuda"}), "");
  expect_error({"model.embedding_layernorm=true"}, "is for model.family = gpt");
  expect_error({"model.sequence=4"}, "model.sequence = 4 is too short for BERT");
  EXPECT_NE(errors_of(kSmallDeck, {"model.bert.post_norm=true"})
                .find("'model.bert.post_norm' needs model.family = bert, but it is gpt"),
            std::string::npos);
}

TEST(DeckChecks, InitialWeightsOfBertFollowDeepInit) {
  const auto errors = [&](std::vector<std::string> overrides) {
    overrides.insert(overrides.begin(), "model.family=bert");
    return errors_of(kSmallDeck, overrides);
  };
  const std::string fine = errors({});
  EXPECT_EQ(errors({"model.bert.deep_init=true"}), fine);
  EXPECT_EQ(errors({"model.init=normal"}), fine);
  EXPECT_NE(errors({"model.init=scaled"})
                .find("model.init = scaled contradicts model.bert.deep_init = false, which decides "
                      "for BERT (try model.init = normal)"),
            std::string::npos);
  EXPECT_EQ(errors_of(kSmallDeck, {"model.init=depth"}), "");
}

TEST(DeckChecks, MupNeedsItsBase) {
  for (const char* key : {"model.mup.base_head", "model.mup.embedding"}) {
    const std::string found = errors_of(kSmallDeck, {std::string(key) + "=2"});
    EXPECT_NE(found.find(std::string("'") + key + "' needs 'model.mup.base'; leave it out"),
              std::string::npos)
        << found;
  }
  EXPECT_EQ(errors_of(kSmallDeck, {"model.mup.base=32", "model.mup.embedding=2"}), "");
}

TEST(DeckChecks, LlamaModelMustFit) {
  const auto errors = [&](std::vector<std::string> overrides) {
    overrides.insert(overrides.begin(), "model.family=llama");
    return errors_of(kSmallDeck, overrides);
  };
  EXPECT_EQ(errors({}), "");
  EXPECT_EQ(errors({"model.kv_heads=2", "model.head_dim=20", "model.qk_norm=head", "model.bias=qkv",
                    "model.tie_embeddings=false", "model.activation=geglu", "parallel.tensor=2",
                    "recompute.granularity=selective"}),
            "");
  EXPECT_EQ(errors({"model.hidden=66", "model.head_dim=8"}), "") << "heads of their own size";
  EXPECT_EQ(errors({"model.position={scaling: llama3, factor: 8, original: 8192}"}), "");
  EXPECT_EQ(errors({"model.position={scaling: linear, factor: 8}"}), "");
  const auto expect_error = [&](const std::vector<std::string>& overrides,
                                const std::string& text) {
    const std::string found = errors(overrides);
    EXPECT_NE(found.find(text), std::string::npos) << found;
  };
  expect_error({"model.kv_heads=3"}, "model.kv_heads = 3 does not divide model.heads = 8 (try");
  expect_error({"model.head_dim=7"}, "model.head_dim = 7 is odd");
  EXPECT_EQ(errors({"model.kv_heads=2", "parallel.tensor=4"}), "") << "copies of heads";
  expect_error({"model.heads=12", "model.head_dim=8", "model.kv_heads=6", "parallel.tensor=4"},
               "parallel.tensor = 4 neither divides model.kv_heads = 6 nor is a multiple of it "
               "(try 1, 2, 3, 6 or 12)");
  expect_error({"model.heads=32", "model.head_dim=8", "model.kv_heads=1", "parallel.tensor=3"},
               "parallel.tensor = 3 does not divide model.heads = 32");
  expect_error({"model.init_cutoff=7"}, "model.init_cutoff");
  expect_error(
      {"model.norm_placement=output", "model.dropout.hidden=0.1"},
      "model.dropout.hidden = 0.1 is not built with model.norm_placement = output (try 0)");
  expect_error({"model.norm_placement=output", "recompute.granularity=selective"},
               "model.norm_placement = output has them after");
  expect_error({"model.embedding_layernorm=true"}, "is for model.family = gpt");
  expect_error({"model.position.scaling=yarn", "model.position.factor=4"},
               "model.position.scaling = yarn needs 'model.position.original'");
  expect_error({"model.position.factor=4"},
               "'model.position.factor' has no effect with model.position.scaling = none");
  expect_error({"model.position={scaling: llama3, factor: 8, original: 8192, low: 4, high: 4}"},
               "model.position.low = 4 is not below model.position.high = 4 (try 1)");
  EXPECT_NE(errors_of(kSmallDeck, {"model.kv_heads=2"})
                .find("'model.kv_heads' needs model.family = llama, but it is gpt; leave it out"),
            std::string::npos);
  EXPECT_NE(errors_of(kSmallDeck, {"model.tie_embeddings=false"})
                .find("model.tie_embeddings = false is not built for model.family = gpt (try "
                      "true)"),
            std::string::npos);
}

}  // namespace
}  // namespace trireme::deck
