// BERT there and back.
#include "huggingface.hpp"

namespace trireme::convert::huggingface {
namespace {

constexpr const char* kBertDeck =
    "model: {family: bert, layers: 2, hidden: 6, heads: 3, ffn: 10, sequence: 8, vocab: 7,\n       "
    " layernorm_eps: 1e-12, bert: {post_norm: true}}\nbatch: {micro: 1, global: 1}\nschedule: "
    "{peak: 1e-3}\ntrain: "
    "{iterations: 3}\ndata: {bert: {dialect: tfrecord}}\n";

TEST_F(HuggingFaceTest, BertGoesThereAndBackBitForBit) {
  const fs::path run = checkpoint_of(kBertDeck);
  const fs::path out = folder_ / "out";
  export_model(run, out);
  const SafetensorsReader theirs(out / "model.safetensors");
  const auto shape = [&](const char* name) {
    const TensorEntry* entry = theirs.find(name);
    return entry ? to_string(entry->shape) : "none";
  };
  EXPECT_EQ(shape("bert.encoder.layer.1.attention.self.key.weight"), "[6, 6]");
  EXPECT_EQ(shape("bert.encoder.layer.1.attention.self.value.bias"), "[6]");
  EXPECT_EQ(shape("bert.encoder.layer.0.intermediate.dense.weight"), "[10, 6]");
  EXPECT_EQ(shape("bert.embeddings.token_type_embeddings.weight"), "[2, 6]");
  EXPECT_EQ(shape("cls.seq_relationship.weight"), "[2, 6]");
  EXPECT_EQ(shape("cls.predictions.decoder.weight"), "none");
  // The keys are rows 6 to 11 of q, k and v.
  std::vector<float> qkv(18 * 6);
  checkpoint::Reader(run).read_whole("model/layers/1/attention/qkv/weight", DType::f32, qkv.data());
  const std::vector<float> keys =
      theirs.read(*theirs.find("bert.encoder.layer.1.attention.self.key.weight"));
  EXPECT_TRUE(std::equal(keys.begin(), keys.end(), qkv.begin() + 36));

  const auto config = nlohmann::json::parse(read_file(out / "config.json"));
  EXPECT_EQ(config["architectures"][0], "BertForPreTraining");
  EXPECT_EQ(config["layer_norm_eps"], 1e-12);
  const std::string said =
      import_model(out, folder_ / "back.h5", {.write_deck = folder_ / "deck.yaml"});
  EXPECT_NE(said.find("there is no vocab.txt"), std::string::npos) << said;
  expect_same_weights(run, folder_ / "back.h5");
  const deck::Deck deck = deck::load(folder_ / "deck.yaml", {"data.train=d"}, {});
  EXPECT_EQ(deck.model.family, deck::Family::bert);
  EXPECT_EQ(deck.checkpoint.load, (folder_ / "back.h5").string());
  EXPECT_NO_THROW(
      import_model(out, folder_ / "deep.h5", {.overrides = {"model.bert.deep_init=true"}}))
      << "no initial weights are drawn";
  export_model(folder_ / "back.h5", folder_ / "again");
  EXPECT_EQ(read_file(out / "model.safetensors"), read_file(folder_ / "again/model.safetensors"));
  EXPECT_EQ(read_file(out / "config.json"), read_file(folder_ / "again/config.json"));
}

TEST_F(HuggingFaceTest, ReadsBertAsItIsPublished) {
  const fs::path run = checkpoint_of(kBertDeck);
  export_model(run, folder_ / "out");
  // Norms have their first names, and tied tensors and positions are written out.
  rewrite([](auto& tensors, auto& values) {
    const std::size_t count = tensors.size();
    for (std::size_t i = 0; i < count; ++i) {
      std::string& name = tensors[i].name;
      const auto copy = [&](const char* as) {
        tensors.push_back({as, tensors[i].shape});
        values.push_back(values[i]);
      };
      if (const std::size_t at = name.find("LayerNorm."); at != std::string::npos)
        name = name.substr(0, at) + (name.ends_with("bias") ? "LayerNorm.beta" : "LayerNorm.gamma");
      if (name == "cls.predictions.bias") copy("cls.predictions.decoder.bias");
      if (tensors[i].name == "bert.embeddings.word_embeddings.weight")
        copy("cls.predictions.decoder.weight");
    }
    tensors.push_back({"bert.embeddings.position_ids", {1, 2}});
    values.push_back({0, 1});
  });
  file("out/vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\n");
  file("out/tokenizer_config.json", R"({"do_lower_case": false})");
  import_model(folder_ / "out", folder_ / "back.h5", {.write_deck = folder_ / "deck.yaml"});
  expect_same_weights(run, folder_ / "back.h5");
  const deck::Deck deck = deck::load(folder_ / "deck.yaml", {"data.train=d"}, {});
  EXPECT_EQ(deck.data.tokenizer.lowercase, false);
  EXPECT_EQ(deck.data.bert.sentence_task, deck::SentenceTask::next);
  export_model(folder_ / "back.h5", folder_ / "again");
  EXPECT_EQ(read_file(folder_ / "again/vocab.txt"), read_file(folder_ / "out/vocab.txt"));
  EXPECT_FALSE(
      nlohmann::json::parse(read_file(folder_ / "again/tokenizer_config.json"))["do_lower_case"]);
}

TEST_F(HuggingFaceTest, BertKeepsItsSentencePieceModel) {
  const std::string model = file("pieces.model", "any bytes");
  std::string text = kBertDeck;
  const std::string tokenizer =
      fmt::format("data: {{tokenizer: {{type: sentencepiece, model: {}}}}}\n", model);
  text.replace(text.find("data: "), std::string::npos, tokenizer);
  export_model(checkpoint_of(text), folder_ / "out");
  const std::string said =
      import_model(folder_ / "out", folder_ / "back.h5", {.write_deck = folder_ / "deck.yaml"});
  EXPECT_EQ(said.find("tfrecord"), std::string::npos) << said;
  const deck::Data data = deck::load(folder_ / "deck.yaml", {}, {.need_data = false}).data;
  EXPECT_EQ(data.tokenizer.type, deck::TokenizerType::sentencepiece);
  EXPECT_EQ(data.tokenizer.model, fs::canonical(folder_ / "out/tokenizer.model").string());
}

TEST_F(HuggingFaceTest, BertWithNormsBeforeTheSublayersIsMegatronBert) {
  std::string text = kBertDeck;
  text.replace(text.find("post_norm: true"), 15, "post_norm: false");
  const fs::path run = checkpoint_of(text);
  export_model(run, folder_ / "out");
  const auto config = nlohmann::json::parse(read_file(folder_ / "out/config.json"));
  EXPECT_EQ(config["architectures"][0], "MegatronBertForPreTraining");
  EXPECT_EQ(config["model_type"], "megatron-bert");
  const SafetensorsReader theirs(folder_ / "out/model.safetensors");
  for (const char* name :
       {"bert.encoder.layer.1.attention.ln.weight", "bert.encoder.layer.0.ln.bias",
        "bert.encoder.ln.weight", "bert.encoder.layer.0.attention.output.dense.weight",
        "cls.predictions.transform.LayerNorm.weight"})
    EXPECT_NE(theirs.find(name), nullptr) << name;
  EXPECT_EQ(theirs.find("bert.embeddings.LayerNorm.weight"), nullptr);
  // The norm before the MLP is the layer's own.
  std::vector<float> norm(6);
  checkpoint::Reader(run).read_whole("model/layers/1/norm2/weight", DType::f32, norm.data());
  EXPECT_EQ(theirs.read(*theirs.find("bert.encoder.layer.1.ln.weight")), norm);
  import_model(folder_ / "out", folder_ / "back.h5", {.write_deck = folder_ / "deck.yaml"});
  expect_same_weights(run, folder_ / "back.h5");
  EXPECT_EQ(deck::load(folder_ / "deck.yaml", {"data.train=d"}, {}).model.bert.post_norm, false);
}

}  // namespace
}  // namespace trireme::convert::huggingface
