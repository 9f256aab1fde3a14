// Checkpoints there and back, and what is refused.
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "checkpoint/file.hpp"
#include "convert/convert.hpp"
#include "convert/huggingface/format.hpp"
#include "convert/huggingface/safetensors.hpp"
#include "core/error.hpp"
#include "core/files.hpp"
#include "core/philox.hpp"
#include "deck/load.hpp"
#include "fixture.hpp"
#include "model/families/gpt2.hpp"
#include "model/families/registry.hpp"
#include "model/spec.hpp"
#include "train/run_state.hpp"

namespace trireme::convert::huggingface {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDeck =
    "model: {layers: 2, hidden: 6, heads: 3, ffn: 10, sequence: 4, positions: 5, vocab: 7,\n       "
    " layernorm_eps: 1e-6}\nbatch: {micro: 1, global: 1}\nschedule: {peak: 1e-3}\ntrain: "
    "{iterations: 3}\n";

constexpr const char* kBertDeck =
    "model: {family: bert, layers: 2, hidden: 6, heads: 3, ffn: 10, sequence: 8, vocab: 7,\n       "
    " layernorm_eps: 1e-12, bert: {post_norm: true}}\nbatch: {micro: 1, global: 1}\nschedule: "
    "{peak: 1e-3}\ntrain: "
    "{iterations: 3}\ndata: {bert: {dialect: tfrecord}}\n";

constexpr const char* kPrefix = "transformer.";

model::Gpt2Config small_config() {
  return {
      .layers = 2, .hidden = 6, .heads = 3, .ffn = 10, .sequence = 4, .positions = 5, .vocab = 7};
}

/// Elements of one tensor: all bits may occur.
std::vector<float> elements(std::int64_t count, std::uint64_t stream) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i)
    values.push_back(static_cast<float>(philox_normal(3, stream, static_cast<std::uint64_t>(i))));
  values[0] = std::bit_cast<float>(0x80012345u);  // no arithmetic may touch it: it would vanish
  return values;
}

class HuggingFaceTest : public FolderTest {
 protected:
  /// A checkpoint of the small model at iteration 3.
  fs::path checkpoint(const std::string& deck = kDeck) {
    return checkpoint(deck, model::gpt2_spec(small_config()));
  }
  fs::path checkpoint(const std::string& deck, const model::ModelSpec& spec) {
    const std::vector<model::Parameter> table = model::declare_parameters(spec);
    std::vector<checkpoint::WholeTensor> tensors;
    for (std::size_t i = 0; i < table.size(); ++i)
      tensors.push_back({.name = "model/" + table[i].name,
                         .shape = table[i].shape,
                         .load = [&table, i] { return elements(table[i].shape.size(), i); }});
    checkpoint::write_checkpoint(folder_ / "run.h5", train::RunState{.iteration = 3}.attributes(),
                                 deck, tensors);
    return folder_ / "run.h5";
  }
  /// The same for the model of `deck`.
  fs::path checkpoint_of(const std::string& deck) {
    const deck::Deck parsed = deck::parse(deck, "deck", {}, {.need_data = false});
    return checkpoint(deck, model::make_spec(parsed, {.size = *parsed.model.vocab}));
  }

  /// Expects the weights of two checkpoints to be the same, bit for bit.
  static void expect_same_weights(const fs::path& a, const fs::path& b) {
    const checkpoint::Reader before(a), after(b);
    for (const checkpoint::TensorInfo& tensor : before.header().tensors) {
      if (!tensor.name.starts_with("model/")) continue;
      ASSERT_NE(after.header().find(tensor.name), nullptr) << tensor.name;
      EXPECT_EQ(after.header().find(tensor.name)->checksum, tensor.checksum) << tensor.name;
    }
  }

  /// A folder that holds the small model.
  fs::path exported() {
    export_model(checkpoint(), folder_ / "out");
    return folder_ / "out";
  }

  /// Changes the config.json in `out`.
  void configure(const char* key, const nlohmann::json& value) const {
    nlohmann::json config = nlohmann::json::parse(read_file(folder_ / "out/config.json"));
    config[key] = value;
    file("out/config.json", config.dump());
  }

  /// Writes the tensors of `out` again, after `change` has had its way with names and elements.
  template <typename Change>
  void rewrite(const Change& change) const {
    std::vector<SafetensorsWriter::Tensor> tensors;
    std::vector<std::vector<float>> values;
    {
      const SafetensorsReader reader(folder_ / "out/model.safetensors");
      for (const TensorEntry& entry : reader.entries()) {
        tensors.push_back({entry.name, entry.shape});
        values.push_back(reader.read(entry));
      }
    }
    change(tensors, values);
    SafetensorsWriter writer(folder_ / "out/model.safetensors", tensors);
    for (const auto& each : values) writer.write(each);
    writer.finish();
  }

  std::string import_problem(const ImportOptions& options = {}) const {
    std::string text =
        message_of<DataError>([&] { import_model(folder_ / "out", folder_ / "bad.h5", options); });
    EXPECT_FALSE(fs::exists(folder_ / "bad.h5"));
    const std::string path = folder_.string() + "/";
    for (std::size_t at; (at = text.find(path)) != std::string::npos;) text.erase(at, path.size());
    return text;
  }
};

TEST_F(HuggingFaceTest, NamesAndTurnsTheTensors) {
  const fs::path out = exported();
  const checkpoint::Reader ours(folder_ / "run.h5");
  const SafetensorsReader theirs(out / "model.safetensors");
  EXPECT_EQ(theirs.entries().size(), 2u + 2u * 12u + 2u);
  const auto compare = [&](const char* our_name, const char* their_name, std::int64_t rows,
                           std::int64_t columns) {
    const TensorEntry* entry = theirs.find(their_name);
    ASSERT_NE(entry, nullptr) << their_name;
    EXPECT_EQ(entry->shape, (std::vector<std::int64_t>{columns, rows})) << their_name;
    std::vector<float> a(static_cast<std::size_t>(rows * columns));
    ours.read_whole(std::string("model/") + our_name, DType::f32, a.data());
    const std::vector<float> b = theirs.read(*entry);
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < columns; ++c)
        EXPECT_EQ(std::bit_cast<std::uint32_t>(a[static_cast<std::size_t>(r * columns + c)]),
                  std::bit_cast<std::uint32_t>(b[static_cast<std::size_t>(c * rows + r)]))
            << their_name << " [" << c << ", " << r << "]";
  };
  compare("layers/1/attention/qkv/weight", "transformer.h.1.attn.c_attn.weight", 18, 6);
  compare("layers/0/attention/projection/weight", "transformer.h.0.attn.c_proj.weight", 6, 6);
  compare("layers/1/mlp/up/weight", "transformer.h.1.mlp.c_fc.weight", 10, 6);
  compare("layers/0/mlp/down/weight", "transformer.h.0.mlp.c_proj.weight", 6, 10);
  EXPECT_EQ(theirs.find("transformer.wte.weight")->shape, (std::vector<std::int64_t>{7, 6}));
  EXPECT_EQ(theirs.find("transformer.wpe.weight")->shape, (std::vector<std::int64_t>{5, 6}));
  EXPECT_NE(theirs.find("transformer.ln_f.bias"), nullptr);
  const auto config = nlohmann::json::parse(read_file(out / "config.json"));
  EXPECT_EQ(config["n_head"], 3);
  EXPECT_EQ(config["n_inner"], 10);
  EXPECT_EQ(config["n_positions"], 5);
  EXPECT_EQ(config["layer_norm_epsilon"], 1e-6);
  EXPECT_TRUE(config["eos_token_id"].is_null());
}

TEST_F(HuggingFaceTest, GoesThereAndBackBitForBit) {
  const fs::path out = exported();
  import_model(out, folder_ / "back.h5", {});
  const checkpoint::Reader before(folder_ / "run.h5"), after(folder_ / "back.h5");
  for (const checkpoint::TensorInfo& tensor : before.header().tensors) {
    ASSERT_NE(after.header().find(tensor.name), nullptr) << tensor.name;
    EXPECT_EQ(after.header().find(tensor.name)->checksum, tensor.checksum) << tensor.name;
    std::vector<float> values(static_cast<std::size_t>(tensor.shape.size()));
    after.read_whole(tensor.name, DType::f32, values.data());
  }
  EXPECT_EQ(after.header().tensors.size(), 3 * before.header().tensors.size());
  EXPECT_EQ(after.header().get<std::int64_t>("iteration"), 0);
  const auto* moment = after.header().find("optimizer/m/embedding/word");
  ASSERT_NE(moment, nullptr);
  std::vector<float> zeros(42, 1.0f);
  after.read_whole(moment->name, DType::f32, zeros.data());
  EXPECT_EQ(zeros, std::vector<float>(42, 0.0f));
  export_model(folder_ / "back.h5", folder_ / "again");
  EXPECT_EQ(read_file(out / "model.safetensors"), read_file(folder_ / "again/model.safetensors"));
}

TEST_F(HuggingFaceTest, WritesTheMomentsThatTheDecksOptimizerKeeps) {
  const fs::path out = exported();
  const auto moments = [&](const std::vector<std::string>& overrides) {
    const fs::path file = folder_ / "imported.h5";
    import_model(out, file, {.overrides = overrides});
    std::string found;
    for (const char* moment : {"m", "v"})
      if (checkpoint::read_header(file).find(fmt::format("optimizer/{}/embedding/word", moment)))
        found += moment;
    fs::remove(file);
    return found;
  };
  EXPECT_EQ(moments({}), "mv");
  EXPECT_EQ(moments({"optimizer.type=lamb"}), "mv");
  EXPECT_EQ(moments({"optimizer.type=sgd"}), "");
  EXPECT_EQ(moments({"optimizer.type=sgd", "optimizer.momentum=0.9"}), "m");
}

TEST_F(HuggingFaceTest, RefusesWeightsThatAreNotFinite) {
  exported();
  rewrite([](auto& tensors, auto& values) {
    EXPECT_EQ(tensors[1].name, "transformer.wpe.weight");
    values[1][7] = std::numeric_limits<float>::infinity();
    values[1][9] = std::numeric_limits<float>::quiet_NaN();
  });
  EXPECT_EQ(
      import_problem(),
      "'out/model.safetensors': tensor 'transformer.wpe.weight' [5, 6] has 2 elements that are not "
      "finite, the first inf at 7: a run that starts from it has no loss that is a number");
}

TEST_F(HuggingFaceTest, EveryErrorNamesTheFile) {
  exported();
  const std::string config = read_file(folder_ / "out/config.json");
  const std::string weights = read_file(folder_ / "out/model.safetensors");
  const std::size_t header = weights.find("}}}") + 3;
  std::mt19937 random(1234);
  const std::vector<std::string> pieces = {"0",    "-1",   "1e9",  "2147483647", "1e999",
                                           "null", "\"\"", "true", "{",          "}",
                                           "[",    "]",    ",",    "9.5"};
  const auto change = [&](std::string text, std::size_t end) {
    const std::size_t at = random() % end;
    if (random() % 2 == 0)
      text[at] = static_cast<char>(random());
    else
      text.replace(at, 1, pieces[random() % pieces.size()]);
    return text;
  };
  int errors = 0;
  for (int i = 0; i < 400; ++i) {
    file("out/config.json", i % 2 == 0 ? change(config, config.size()) : config);
    file("out/model.safetensors", i % 2 == 1 ? change(weights, header) : weights);
    const std::string problem =
        message_of<Error>([&] { import_model(folder_ / "out", folder_ / "bad.h5", {}); });
    fs::remove(folder_ / "bad.h5");
    if (problem.empty()) continue;
    ++errors;
    EXPECT_NE(problem.find(folder_.string()), std::string::npos) << i << ": " << problem;
  }
  EXPECT_GT(errors, 200);
}

TEST_F(HuggingFaceTest, ReadsWhatTransformersWrites) {
  exported();
  // Old files have no prefix, but causal masks; tied output projections may be written out.
  rewrite([](auto& tensors, auto& values) {
    for (auto& tensor : tensors) tensor.name = tensor.name.substr(std::string(kPrefix).size());
    tensors.push_back({"h.0.attn.bias", {1, 1, 2, 2}});
    values.push_back({1, 0, 1, 1});
    tensors.push_back({"lm_head.weight", tensors[0].shape});
    values.push_back(values[0]);
  });
  import_model(folder_ / "out", folder_ / "old.h5", {});
  export_model(folder_ / "old.h5", folder_ / "new");
  export_model(folder_ / "run.h5", folder_ / "first");
  EXPECT_EQ(read_file(folder_ / "new/model.safetensors"),
            read_file(folder_ / "first/model.safetensors"));
}

TEST_F(HuggingFaceTest, RefusesOtherTensors) {
  exported();
  const fs::path good = folder_ / "good";
  fs::copy(folder_ / "out", good);
  const auto changed = [&](const auto& change) {
    fs::copy(good, folder_ / "out",
             fs::copy_options::recursive | fs::copy_options::overwrite_existing);
    rewrite(change);
    return import_problem();
  };
  EXPECT_EQ(changed([](auto& tensors, auto& values) {
              tensors.pop_back();
              values.pop_back();
            }),
            "'out/model.safetensors' has no tensor 'transformer.ln_f.bias'");
  EXPECT_EQ(changed([](auto& tensors, auto&) {
              tensors[0].shape = {6, 7};
            }),
            "'out/model.safetensors': tensor 'transformer.wte.weight' has shape [6, 7], but "
            "config.json's model needs [7, 6]");
  EXPECT_EQ(changed([](auto& tensors, auto& values) {
              tensors.push_back({"transformer.h.2.ln_1.bias", {1}});
              values.push_back({1});
            }),
            "'out/model.safetensors' has a tensor 'transformer.h.2.ln_1.bias' [1], which "
            "config.json's model does not have");
  EXPECT_EQ(changed([](auto& tensors, auto& values) {
              tensors.push_back({"lm_head.weight", tensors[0].shape});
              values.push_back(values[0]);
              values.back()[3] += 1;
            }),
            "'out/model.safetensors': 'lm_head.weight' is not 'transformer.wte.weight', but "
            "config.json says that the two are tied");
}

TEST_F(HuggingFaceTest, RefusesOtherModels) {
  exported();
  const std::string good = read_file(folder_ / "out/config.json");
  const auto changed = [&](const char* key, const nlohmann::json& value) {
    file("out/config.json", good);
    configure(key, value);
    return import_problem();
  };
  EXPECT_EQ(
      changed("model_type", "t5").substr(0, 82),
      "'out/config.json': \"model_type\" is \"t5\"; read are gpt2, bert, megatron-bert, llama");
  EXPECT_EQ(changed("activation_function", "relu"),
            "'out/config.json': \"activation_function\" is \"relu\"; Trireme's GELU is the tanh "
            "form, \"gelu_new\"");
  EXPECT_EQ(changed("n_head", nullptr), "'out/config.json': \"n_head\" is missing or no size");
  EXPECT_EQ(changed("n_head", 4), "'out/config.json': \"n_head\" 4 does not divide \"n_embd\" 6");
  EXPECT_EQ(changed("n_layer", 1).substr(0, 47), "'out/model.safetensors' has a tensor 'transform");
  file("out/config.json", good);
  const fs::path deck = file("other.yaml", kDeck);
  EXPECT_EQ(import_problem({.deck = deck, .overrides = {"model.heads=2"}}),
            "the deck says model.heads = 2, but 'out/model.safetensors' is of a model with 3");
}

TEST_F(HuggingFaceTest, RefusesModelsWithoutCounterpart) {
  std::string deck = kDeck;
  deck.replace(deck.find("vocab: 7"), 8, "vocab: 7, embedding_layernorm: true");
  const fs::path path = checkpoint(deck);
  EXPECT_EQ(message_of<DataError>([&] { export_model(path, folder_ / "out"); }),
            "GPT-2 has no counterpart of 'embedding/norm/weight': this model has no form there");
  EXPECT_FALSE(fs::exists(folder_ / "out"));
}

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

/// A deck of the Llama family with `keys` of the model.
std::string llama_deck_with(const std::string& keys) {
  return "model: {family: llama, layers: 2, hidden: 16, heads: 4, kv_heads: 2, ffn: 10, sequence: "
         "8,\n        vocab: 7, " +
         keys + "}\nbatch: {micro: 1, global: 1}\nschedule: {peak: 1e-3}\ntrain: {iterations: 3}\n";
}

TEST_F(HuggingFaceTest, TheLlamaFamilyGoesThereAndBackBitForBit) {
  const struct {
    const char* type;
    const char* keys;
  } kModels[] = {
      {"llama",
       "tie_embeddings: false, position: {theta: 5e5, scaling: llama3, factor: 32, original: "
       "8192}"},
      {"llama", "tie_embeddings: true, position: {scaling: yarn, factor: 4, original: 64}"},
      {"llama", "activation: geglu, position: {scaling: linear, factor: 2}"},
      {"mistral", "head_dim: 6, tie_embeddings: false"},
      {"mistral", "window: 5, tie_embeddings: false"},
      {"qwen2", "bias: qkv, window: 5"},
      {"qwen3", "qk_norm: head, window: 3"},
      {"qwen2", "bias: qkv, layernorm_eps: 1e-6"},
      {"qwen3", "qk_norm: head, head_dim: 8, position: {theta: 1e6}"},
      {"olmo2", "qk_norm: width, norm_placement: output, tie_embeddings: false"},
  };
  int number = 0;
  for (const auto& [type, keys] : kModels) {
    SCOPED_TRACE(keys);
    const fs::path run = checkpoint_of(llama_deck_with(keys));
    const fs::path out = folder_ / fmt::format("out{}", ++number);
    const fs::path back = folder_ / fmt::format("back{}.h5", number);
    export_model(run, out);
    EXPECT_EQ(nlohmann::json::parse(read_file(out / "config.json"))["model_type"], type);
    import_model(out, back, {.write_deck = folder_ / "deck.yaml"});
    expect_same_weights(run, back);
    // The deck describes the same model.
    const deck::Deck before = deck::parse(llama_deck_with(keys), "deck", {}, {.need_data = false});
    const deck::Deck after = deck::load(folder_ / "deck.yaml", {}, {.need_data = false});
    EXPECT_EQ(after.model, before.model);
    const fs::path again = folder_ / fmt::format("again{}", number);
    export_model(back, again);
    EXPECT_EQ(read_file(out / "model.safetensors"), read_file(again / "model.safetensors"));
    EXPECT_EQ(read_file(out / "config.json"), read_file(again / "config.json"));
  }
}

TEST_F(HuggingFaceTest, NamesTheTensorsOfLlama) {
  export_model(checkpoint_of(llama_deck_with("tie_embeddings: true")), folder_ / "out");
  const SafetensorsReader theirs(folder_ / "out/model.safetensors");
  const auto shape = [&](const char* name) {
    const TensorEntry* entry = theirs.find(name);
    return entry ? to_string(entry->shape) : "none";
  };
  EXPECT_EQ(theirs.entries().size(), 2u + 2u * 9u);
  EXPECT_EQ(shape("model.layers.1.self_attn.q_proj.weight"), "[16, 16]");
  EXPECT_EQ(shape("model.layers.1.self_attn.k_proj.weight"), "[8, 16]");
  EXPECT_EQ(shape("model.layers.0.mlp.up_proj.weight"), "[10, 16]");
  EXPECT_EQ(shape("model.layers.0.mlp.down_proj.weight"), "[16, 10]");
  EXPECT_EQ(shape("lm_head.weight"), "none");
  std::vector<float> gate_up(20 * 16);
  checkpoint::Reader(folder_ / "run.h5")
      .read_whole("model/layers/0/mlp/gate_up/weight", DType::f32, gate_up.data());
  const std::vector<float> up = theirs.read(*theirs.find("model.layers.0.mlp.up_proj.weight"));
  EXPECT_TRUE(std::equal(up.begin(), up.end(), gate_up.begin() + 160));
  const auto config = nlohmann::json::parse(read_file(folder_ / "out/config.json"));
  EXPECT_EQ(config["rope_theta"], 1e4);
  EXPECT_EQ(config["rope_parameters"]["rope_theta"], 1e4);
  EXPECT_TRUE(config["rope_scaling"].is_null());
  EXPECT_TRUE(fs::exists(folder_ / "out/generation_config.json"));
}

TEST_F(HuggingFaceTest, NamesWhatNoLlamaDeckCanSay) {
  export_model(checkpoint_of(llama_deck_with("tie_embeddings: true")), folder_ / "out");
  const std::string good = read_file(folder_ / "out/config.json");
  const auto changed = [&](const char* key, const nlohmann::json& value) {
    file("out/config.json", good);
    configure(key, value);
    return import_problem();
  };
  EXPECT_EQ(changed("attention_bias", true),
            "'out/config.json': \"attention_bias\" is true; Trireme has biases of q, k and v "
            "alone, as Qwen2.5");
  EXPECT_NE(changed("hidden_act", "relu").find("\"hidden_act\" is \"relu\"; model.activation is"),
            std::string::npos);
  EXPECT_EQ(changed("rope_scaling", {{"type", "dynamic"}, {"factor", 2.0}}),
            "'out/config.json': \"rope_scaling\" is {\"factor\":2.0,\"type\":\"dynamic\"}; "
            "model.position.scaling is linear, llama3 or yarn");
  EXPECT_NE(changed("tie_word_embeddings", false).find("has no tensor 'lm_head.weight'"),
            std::string::npos);
  EXPECT_EQ(message_of<DataError>([&] {
              export_model(checkpoint_of(llama_deck_with("bias: qkv, qk_norm: head")),
                           folder_ / "other");
            }).substr(0, 47),
            "no model of transformers has model.norm_placeme");
  EXPECT_EQ(
      message_of<DataError>([&] {
        export_model(
            checkpoint_of(llama_deck_with("norm_placement: output, qk_norm: width, window: 4")),
            folder_ / "other");
      }),
      "no model of transformers has model.norm_placement = output and model.window");
}

TEST_F(HuggingFaceTest, ReadsWindowsOfAllLayersAndLimitsTheContextToThoseOfSome) {
  export_model(checkpoint_of(llama_deck_with("bias: qkv, window: 4")), folder_ / "out");
  const auto imported = [&](const char* key, const nlohmann::json& value) {
    configure(key, value);
    fs::remove(folder_ / "back.h5");
    const std::string said =
        import_model(folder_ / "out", folder_ / "back.h5", {.write_deck = folder_ / "deck.yaml"});
    const deck::Model model = deck::load(folder_ / "deck.yaml", {}, {.need_data = false}).model;
    return std::tuple(model.window.value_or(0), model.positions,
                      said.find("some layers alone have a window of 4 tokens") < said.size());
  };
  using Read = std::tuple<std::int64_t, std::int64_t, bool>;
  EXPECT_EQ(imported("max_window_layers", 0), Read(4, 8, false));
  EXPECT_EQ(imported("max_window_layers", 1), Read(0, 4, true));
  EXPECT_EQ(imported("max_window_layers", 2), Read(0, 8, false));
  EXPECT_EQ(
      imported("layer_types", nlohmann::json::array({"sliding_attention", "sliding_attention"})),
      Read(4, 8, false));
  EXPECT_EQ(imported("layer_types", nlohmann::json::array({"full_attention", "sliding_attention"})),
            Read(0, 4, true));
  EXPECT_EQ(imported("use_sliding_window", false), Read(0, 8, false));
}

TEST_F(HuggingFaceTest, WritesSeveralFilesAndTypes) {
  const fs::path run = checkpoint();
  export_model(run, folder_ / "out", {.dtype = DType::bf16, .shard_bytes = 300});
  const auto index = nlohmann::json::parse(read_file(folder_ / "out/model.safetensors.index.json"));
  std::set<std::string> files;
  for (const auto& [tensor, file] : index["weight_map"].items()) {
    files.insert(file.get<std::string>());
    const SafetensorsReader reader(folder_ / "out" / file.get<std::string>());
    ASSERT_NE(reader.find(tensor), nullptr) << tensor;
    EXPECT_EQ(reader.find(tensor)->dtype, "BF16");
  }
  EXPECT_GT(files.size(), 3u);
  EXPECT_TRUE(files.contains(fmt::format("model-00001-of-{:05}.safetensors", files.size())));
  // bf16 there and back is the identity: the second export has the same bytes.
  import_model(folder_ / "out", folder_ / "back.h5", {});
  export_model(folder_ / "back.h5", folder_ / "again", {.dtype = DType::bf16, .shard_bytes = 300});
  for (const std::string& file : files)
    EXPECT_EQ(read_file(folder_ / "out" / file), read_file(folder_ / "again" / file)) << file;
  EXPECT_EQ(nlohmann::json::parse(read_file(folder_ / "out/config.json"))["torch_dtype"],
            "bfloat16");

  fs::remove(folder_ / "back.h5");
  fs::remove(folder_ / "out" / *files.begin());
  EXPECT_NE(message_of<Error>([&] {
              import_model(folder_ / "out", folder_ / "back.h5", {});
            }).find(*files.begin()),
            std::string::npos);
  file("out/model.safetensors.index.json", R"({"weight_map": {"a": "../b"}})");
  EXPECT_NE(message_of<DataError>([&] {
              import_model(folder_ / "out", folder_ / "back.h5", {});
            }).find("its weight_map has a value that is no file of its folder"),
            std::string::npos);
}

TEST_F(HuggingFaceTest, NamesAFolderThatIsNotThere) {
  EXPECT_EQ(message_of<IoError>([&] { import_model("nowhere", folder_ / "bad.h5", {}); }),
            "there is no 'nowhere'");
}

TEST_F(HuggingFaceTest, FindsTheTokenizerFromEverywhere) {
  const fs::path out = exported();
  file("out/vocab.json", "{}");
  file("out/merges.txt", "");
  import_model(fs::relative(out), folder_ / "imported.h5", {});
  const std::string deck = checkpoint::Reader(folder_ / "imported.h5").header().deck;
  EXPECT_NE(deck.find(fs::absolute(out / "vocab.json").string()), std::string::npos) << deck;
}

TEST_F(HuggingFaceTest, OverwritesNothing) {
  const fs::path out = exported();
  EXPECT_NE(message_of<IoError>([&] {
              export_model(folder_ / "run.h5", out);
            }).find("is there already: remove it, or name another folder"),
            std::string::npos);
  EXPECT_NE(message_of<IoError>([&] {
              import_model(out, folder_ / "run.h5", {});
            }).find("is there already: remove it, or name another file"),
            std::string::npos);
}

TEST(Transpose, TurnsBlocksOfAnySize) {
  for (const auto& [rows, columns] : {std::pair{1, 1}, {3, 70}, {33, 32}, {64, 65}}) {
    const std::vector<float> values = elements(rows * columns, 9);
    const std::vector<float> turned = transpose(values, rows, columns);
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < columns; ++c)
        EXPECT_EQ(std::bit_cast<std::uint32_t>(turned[static_cast<std::size_t>(c * rows + r)]),
                  std::bit_cast<std::uint32_t>(values[static_cast<std::size_t>(r * columns + c)]));
  }
}

}  // namespace
}  // namespace trireme::convert::huggingface
