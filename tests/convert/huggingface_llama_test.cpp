// The Llama family there and back.
#include <cmath>

#include "huggingface.hpp"

namespace trireme::convert::huggingface {
namespace {

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
  for (const nlohmann::json& untyped : {nlohmann::json("linear"), nlohmann::json::array()})
    EXPECT_EQ(changed("rope_scaling", untyped), "'out/config.json': \"rope_scaling\" is " +
                                                    untyped.dump() +
                                                    "; expected an object with \"rope_type\"");
  EXPECT_EQ(changed("rope_scaling", {{"factor", 2}}),
            "'out/config.json': \"rope_scaling\" is {\"factor\":2}; "
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

TEST_F(HuggingFaceTest, ReadsRotaryPositionsAsTransformersDoes) {
  export_model(checkpoint_of(llama_deck_with("tie_embeddings: true")), folder_ / "out");
  configure("max_position_embeddings", 8);
  const auto imported = [&](const char* key, const nlohmann::json& value) {
    configure(key, value);
    fs::remove(folder_ / "back.h5");
    import_model(folder_ / "out", folder_ / "back.h5", {.write_deck = folder_ / "deck.yaml"});
    return deck::load(folder_ / "deck.yaml", {}, {.need_data = false}).model.position;
  };
  // rope_scaling stands for rope_parameters where it is not empty, and its theta for the one
  // outside; the context before the scaling is max_position_embeddings unless it is given.
  configure("rope_theta", 5e5);
  EXPECT_EQ(imported("rope_parameters", {{"rope_type", "default"}}).theta, 5e5);
  EXPECT_EQ(imported("rope_parameters", {{"rope_theta", 1e6}}).theta, 1e6);
  const nlohmann::json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}};
  EXPECT_EQ(imported("rope_scaling", yarn).theta, 5e5);
  EXPECT_EQ(imported("rope_scaling", yarn).original, 8);
  nlohmann::json more = yarn;
  more["original_max_position_embeddings"] = 6.0;
  more["attention_factor"] = 0.1 * std::log(4.0) + 1.0;
  more["truncate"] = true;
  EXPECT_EQ(imported("rope_scaling", more).original, 6);
  EXPECT_EQ(imported("original_max_position_embeddings", 5).original, 5);

  const auto problem = [&](const char* key, const nlohmann::json& value) {
    nlohmann::json changed = yarn;
    changed[key] = value;
    configure("rope_scaling", changed);
    const std::string text = import_problem();
    return text.substr(text.rfind("; ") + 2);
  };
  EXPECT_EQ(problem("truncate", false),
            "Trireme's ramp of yarn begins and ends at whole pairs, as with \"truncate\": true");
  EXPECT_EQ(problem("attention_factor", 1.0),
            "Trireme's \"attention_factor\" of yarn is 0.1 ln factor + 1 = 1.13863");
  EXPECT_EQ(problem("mscale", 0.7), "Trireme's factor of yarn is fixed, without \"mscale\"");
  EXPECT_EQ(problem("factor", nullptr), "\"factor\" is missing or no number");
  EXPECT_EQ(problem("partial_rotary_factor", 0.5), "Trireme rotates whole heads");
  EXPECT_EQ(problem("rope_type", "longrope"), "model.position.scaling is linear, llama3 or yarn");
  EXPECT_EQ(problem("full_attention", {{"rope_type", "default"}}),
            "Trireme has the same positions in all layers");
}

TEST_F(HuggingFaceTest, TakesWhatConfigLeavesOutFromTheClassOfTransformers) {
  std::string deck = llama_deck_with("head_dim: 2");
  deck.replace(deck.find("heads: 4, kv_heads: 2"), 21, "heads: 8, kv_heads: 8");
  export_model(checkpoint_of(deck), folder_ / "out");
  const nlohmann::json written = nlohmann::json::parse(read_file(folder_ / "out/config.json"));
  const auto imported = [&](const char* type, const char* without) {
    nlohmann::json config = written;
    config["model_type"] = type;
    config.erase(without);
    file("out/config.json", config.dump());
    fs::remove(folder_ / "back.h5");
    import_model(folder_ / "out", folder_ / "back.h5", {.write_deck = folder_ / "deck.yaml"});
    return deck::load(folder_ / "deck.yaml", {}, {.need_data = false}).model;
  };
  EXPECT_EQ(imported("llama", "num_key_value_heads").kv_heads, 8);
  EXPECT_EQ(imported("mistral", "num_key_value_heads").kv_heads, 8);
  EXPECT_EQ(imported("mistral", "max_position_embeddings").positions, 4096 * 32);
  EXPECT_EQ(imported("llama", "max_position_embeddings").positions, 2048);
  EXPECT_EQ(imported("llama", "rms_norm_eps").layernorm_eps, 1e-6);
  EXPECT_EQ(imported("llama", "rope_theta").position.theta, written["rope_theta"]);
  // A Llama of transformers has no window, whatever its config.json says.
  configure("sliding_window", 3);
  fs::remove(folder_ / "back.h5");
  import_model(folder_ / "out", folder_ / "back.h5", {.write_deck = folder_ / "deck.yaml"});
  EXPECT_FALSE(deck::load(folder_ / "deck.yaml", {}, {.need_data = false}).model.window);
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

TEST_F(HuggingFaceTest, ReadsTheLayersOfMistralsWindow) {
  export_model(checkpoint_of(llama_deck_with("bias: none, window: 4")), folder_ / "out");
  configure("model_type", "mistral");
  for (const bool all : {true, false}) {
    fs::remove(folder_ / "back.h5");
    configure("layer_types", nlohmann::json::array({all ? "sliding_attention" : "full_attention",
                                                    "sliding_attention"}));
    import_model(folder_ / "out", folder_ / "back.h5", {.write_deck = folder_ / "deck.yaml"});
    const deck::Model model = deck::load(folder_ / "deck.yaml", {}, {.need_data = false}).model;
    EXPECT_EQ(model.window.value_or(0), all ? 4 : 0);
    EXPECT_EQ(model.positions, all ? 8 : 4);
  }
}

TEST_F(HuggingFaceTest, ImportsAModelWithoutAStandardDeviationOfInitialWeights) {
  for (const std::string& deck : {std::string(kDeck), llama_deck_with("bias: none")}) {
    fs::remove_all(folder_ / "out");
    fs::remove(folder_ / "run.h5");
    fs::remove(folder_ / "back.h5");
    export_model(checkpoint_of(deck), folder_ / "out");
    configure("initializer_range", 0);
    const std::string said =
        import_model(folder_ / "out", folder_ / "back.h5", {.write_deck = folder_ / "deck.yaml"});
    EXPECT_NE(said.find("\"initializer_range\" is 0"), std::string::npos) << said;
    EXPECT_EQ(deck::load(folder_ / "deck.yaml", {}, {.need_data = false}).model.init_std, 0.02);
    expect_same_weights(folder_ / "run.h5", folder_ / "back.h5");
    configure("initializer_range", -1);
    EXPECT_NE(import_problem().find("model.init_std"), std::string::npos) << import_problem();
  }
}

}  // namespace
}  // namespace trireme::convert::huggingface
