// GPT-2 there and back, and what is refused of every family.
#include <limits>
#include <set>

#include "huggingface.hpp"

namespace trireme::convert::huggingface {
namespace {

constexpr const char* kPrefix = "transformer.";

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
  EXPECT_EQ(after.header().tensors.size(), before.header().tensors.size());  // no moments
  EXPECT_EQ(after.header().get<std::int64_t>("iteration"), 0);
  export_model(folder_ / "back.h5", folder_ / "again");
  EXPECT_EQ(read_file(out / "model.safetensors"), read_file(folder_ / "again/model.safetensors"));
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
  nlohmann::json nameless = nlohmann::json::parse(good);
  nameless.erase("n_embd");
  nameless.erase("model_type");
  file("out/config.json", nameless.dump());
  EXPECT_EQ(import_problem().substr(0, 63),
            "'out/config.json': \"model_type\" is missing; read are gpt2, bert");
  EXPECT_EQ(changed("activation_function", "relu"),
            "'out/config.json': \"activation_function\" is \"relu\"; Trireme's GELU is the tanh "
            "form, \"gelu_new\"");
  EXPECT_EQ(changed("n_head", nullptr), "'out/config.json': \"n_head\" is missing or no size");
  EXPECT_EQ(changed("n_head", 4), "'out/config.json': \"n_head\" 4 does not divide \"n_embd\" 6");
  EXPECT_EQ(changed("n_layer", 1).substr(0, 47), "'out/model.safetensors' has a tensor 'transform");
  EXPECT_EQ(changed("layer_norm_epsilon", -1),
            "'out/config.json' describes a model that no deck can: model.layernorm_eps = -1: must "
            "be above 0");
  file("out/config.json", good);
  const std::string typo = message_of<DeckError>(
      [&] { import_model(folder_ / "out", folder_ / "bad.h5", {.overrides = {"model.head=2"}}); });
  EXPECT_EQ(typo.substr(0, typo.find('\n')),
            "--set model.head=2: unknown key 'model.head' — did you mean 'heads'?");
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
  const fs::path index_file = folder_ / "out/model.safetensors.index.json";
  fs::rename(index_file, folder_ / "index.json");
  EXPECT_NE(message_of<IoError>([&] {
              import_model(folder_ / "out", folder_ / "back.h5", {});
            }).find(", but no model.safetensors.index.json, which names the files of all tensors"),
            std::string::npos);
  fs::rename(folder_ / "index.json", index_file);
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
  file("out/model.safetensors.index.json", R"({"weight_map": {}})");
  EXPECT_NE(message_of<DataError>([&] {
              import_model(folder_ / "out", folder_ / "back.h5", {});
            }).find("is no index of safetensors files: its weight_map names no tensor"),
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
  import_model(fs::relative(out) / ".." / out.filename(), folder_ / "imported.h5", {});
  const std::string deck = checkpoint::Reader(folder_ / "imported.h5").header().deck;
  EXPECT_NE(deck.find(fs::canonical(out / "vocab.json").string()), std::string::npos) << deck;
}

TEST_F(HuggingFaceTest, FindsTheWordPieceVocabularyOfAGpt) {
  const std::string vocab = file("pieces.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\n");
  export_model(
      checkpoint(fmt::format("{}data: {{tokenizer: {{type: wordpiece, vocab: {}, lowercase: "
                             "false}}}}\n",
                             kDeck, vocab)),
      folder_ / "out");
  ASSERT_TRUE(fs::exists(folder_ / "out/vocab.txt"));
  import_model(folder_ / "out", folder_ / "back.h5", {.write_deck = folder_ / "deck.yaml"});
  const deck::Tokenizer read =
      deck::load(folder_ / "deck.yaml", {}, {.need_data = false}).data.tokenizer;
  EXPECT_EQ(read.type, deck::TokenizerType::wordpiece);
  EXPECT_EQ(read.vocab, fs::canonical(folder_ / "out/vocab.txt").string());
  EXPECT_EQ(read.lowercase, false);
}

TEST_F(HuggingFaceTest, WritesTheDeckOfARunThatStartsFromTheWeights) {
  const fs::path out = exported(), own = file("own.yaml", kDeck);
  const fs::path back = fs::canonical(folder_) / "back.h5", deck = folder_ / "mine.yaml";
  for (ImportOptions options : {ImportOptions{}, ImportOptions{.overrides = {"batch.global=2"}},
                                ImportOptions{.deck = own}}) {
    options.write_deck = deck;
    import_model(out, back, options);
    const deck::Deck written = deck::load(deck, {}, {.need_data = false});
    EXPECT_EQ(written.checkpoint.load, back.string());
    EXPECT_EQ(written.run.name, options.deck.empty() ? "mine" : "own");
    EXPECT_EQ(written.batch.global, options.overrides.empty() ? 1 : 2);
    fs::remove(back);
  }
}

TEST_F(HuggingFaceTest, SaysThatEmbeddingsHaveNoDropoutOfTheirOwn) {
  exported();
  configure("embd_pdrop", 0.3);
  const std::string said = import_model(folder_ / "out", folder_ / "back.h5", {});
  EXPECT_NE(
      said.find("note: model.dropout.hidden is \"resid_pdrop\", 0.1, and drops embeddings, too, "
                "of which \"embd_pdrop\" is 0.3\n"),
      std::string::npos)
      << said;
}

TEST_F(HuggingFaceTest, OverwritesNothing) {
  const fs::path out = exported();
  const auto problem = [&](const fs::path& folder) {
    const std::string text = message_of<IoError>([&] { export_model(folder_ / "run.h5", folder); });
    return text.substr(std::min(text.find("' has ") + 2, text.size()));
  };
  EXPECT_EQ(problem(out),
            "has files of a model already (config.json, model.safetensors): remove them, or "
            "name another folder");
  fs::create_directory(folder_ / "other");
  file("other/config.json", "{}");
  file("other/tokenizer.json", "{}");
  file("other/README.md", "");
  EXPECT_EQ(problem(folder_ / "other"),
            "has files of a model already (config.json, tokenizer.json): remove them, or name "
            "another folder");
  EXPECT_FALSE(fs::exists(folder_ / "other/model.safetensors"));
  EXPECT_EQ(read_file(folder_ / "other/config.json"), "{}");
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
