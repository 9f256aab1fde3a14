// The table of flags; the recipes of tests/data/flags: each becomes the deck of the same folder.
#include <algorithm>
#include <set>
#include <sstream>

#include "convert/convert.hpp"
#include "convert/flags/recipe.hpp"
#include "core/error.hpp"
#include "core/files.hpp"
#include "deck/keys/schema.hpp"
#include "deck/value.hpp"
#include "fixture.hpp"

namespace trireme::convert::flags {
namespace {

namespace fs = std::filesystem;

const fs::path kData = fs::path(TRIREME_SOURCE_DIR) / "tests/data/flags";

/// `deck` without comments and empty lines: what does not change as features are built.
std::string values_of(const std::string& deck) {
  std::istringstream lines(deck);
  std::string values;
  for (std::string line; std::getline(lines, line);) {
    line.resize(std::min(line.find('#'), line.size()));
    while (line.ends_with(' ')) line.pop_back();
    if (!line.empty()) values += line + "\n";
  }
  return values;
}

/// Every key of `item`, under `path`, is one of the deck's.
void check_keys(const deck::Item& item, const std::string& path) {
  for (std::size_t i = 0; i < item.keys.size(); ++i) {
    const std::string key = path + item.keys[i].text;
    if (item.items[i].kind == deck::Item::Kind::mapping)
      check_keys(item.items[i], key + ".");
    else
      EXPECT_NE(deck::find_key(key), nullptr) << key;
  }
}

void expect_deck(const Result& result, const std::string& name) {
  EXPECT_EQ(values_of(result.deck), values_of(read_file(kData / name)));
  deck::Problems problems(name, {});
  const deck::Item root = deck::read_yaml(result.deck, 0, problems);
  problems.raise_if_any();
  check_keys(root, "");
}

TEST(Recipes, DeepSpeedsExampleOf3dParallelism) {
  // As it stands its JSON file contradicts its script: see contradictions_test.cpp.
  const Result result = convert({.file = kData / "r0_deepspeed_3d.sh",
                                 .definitions = {{"steps", "32"}, {"each", "64"}},
                                 .ignored = {"gradient_accumulation_steps"}});
  expect_deck(result, "r0.yaml");
}

TEST(Recipes, BigScience) {
  const Result result =
      convert({.file = kData / "r1_bigscience.sh", .definitions = {{"SLURM_NNODES", "2"}}});
  expect_deck(result, "r1.yaml");
  EXPECT_NE(result.deck.find("8 = tensor 2 x pipeline 2 x data 2"), std::string::npos);
}

TEST(Recipes, BigScienceWithoutItsJob) {
  const Result result = convert({.file = kData / "r1_bigscience.sh"});
  expect_deck(result, "r1.yaml");
  EXPECT_EQ(result.deck.find("Its ranks"), std::string::npos);
}

TEST(Recipes, FirstMegatron) {
  const Result result = convert({.file = kData / "r2_first_release.sh"});
  expect_deck(result, "r2.yaml");
  ASSERT_EQ(result.notes.size(), 1u);
  EXPECT_NE(result.notes[0].find("make datasets with trireme-preprocess"), std::string::npos);
}

/// A script in the manner of the first Megatron-LM's eight: one GPU, eight by
/// torch.distributed.launch, or two tensor ranks on them.
Result first_release(const std::string& program, bool distributed, const std::string& flags) {
  const bool bert = program == "pretrain_bert.py";
  std::string text = distributed ? "GPUS=8\nNODES=1\npython -m torch.distributed.launch "
                                   "--nproc_per_node $GPUS --nnodes $NODES "
                                 : "python ";
  text += program +
          " --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --save checkpoints/345m "
          "--load checkpoints/345m --resume-dataloader --cache-dir cache --split 949,50,1 "
          "--distributed-backend nccl --weight-decay 1e-2 --clip-grad 1.0 --warmup .01 --fp16 ";
  text += bert ? "--batch-size 4 --seq-length 512 --max-position-embeddings 512 "
                 "--max-preds-per-seq 80 --train-iters 1000000 --lr 0.0001 --lr-decay-style linear "
                 "--lr-decay-iters 990000 --presplit-sentences --fp32-layernorm --fp32-embedding "
               : "--batch-size 8 --seq-length 1024 --max-position-embeddings 1024 --train-iters "
                 "320000 --lr 0.00015 --lr-decay-style cosine --checkpoint-activations "
                 "--train-data wikipedia --lazy-loader --tokenizer-type GPT2BPETokenizer ";
  const ScratchFolder folder;
  std::ofstream(folder.path() / "train.sh") << text << flags;
  return convert({.file = folder.path() / "train.sh"});
}

TEST(Recipes, FirstMegatronsGpt2OnOneGpuDistributedAndModelParallel) {
  struct Case {
    bool distributed;
    std::string flags, batch;
    bool tensor;
  };
  for (const Case& one :
       {Case{false, "", "  global: 8\n", false}, Case{true, "", "  global: 64\n", false},
        Case{true, "--model-parallel-size 2", "  global: 32\n", true}}) {
    const std::string deck =
        values_of(first_release("pretrain_gpt2.py", one.distributed, one.flags).deck);
    for (const char* text : {"  layers: 24\n", "  sequence: 1024\n", "  iterations: 320000\n",
                             "  peak: 0.00015\n", "  type: cosine\n", "  warmup: 0.01\n",
                             "  dialect: v1\n", "  compute: fp16\n", "  granularity: full\n",
                             "  split: 949,50,1\n", "  zero: 0\n", "  every: 5000 iterations\n"})
      EXPECT_NE(deck.find(text), std::string::npos) << text << "\n" << deck;
    EXPECT_NE(deck.find(one.batch), std::string::npos) << one.batch << "\n" << deck;
    EXPECT_EQ(deck.find("  tensor: 2\n") != std::string::npos, one.tensor) << deck;
  }
}

TEST(Recipes, FirstMegatronsBertOfFiveKinds) {
  const std::string words =
      "--train-data wikipedia --lazy-loader --tokenizer-type BertWordPieceTokenizer "
      "--tokenizer-model-type bert-large-uncased ";
  struct Case {
    bool distributed;
    std::string flags;
    std::vector<std::string> lines;
  };
  for (const Case& one : std::vector<Case>{
           {false,
            words,
            {"  global: 4\n", "  dialect: v0\n", "  type: wordpiece\n", "    lowercase: true\n",
             "  split: 949,50,1\n"}},
           {true, words, {"  global: 32\n", "  dialect: v0\n"}},
           {true, words + "--model-parallel-size 2", {"  global: 16\n", "  tensor: 2\n"}},
           {false,
            "--train-data wikipedia --lazy-loader --tokenizer-type SentencePieceTokenizer "
            "--tokenizer-model-type bpe --tokenizer-path tokenizer.model",
            {"    type: sentencepiece\n", "    model: tokenizer.model\n", "  dialect: v0\n"}},
           {true,
            "--use-tfrecords --train-data a.tfrecord b.tfrecord --valid-data c.tfrecord "
            "--test-data d.tfrecord --tokenizer-type BertWordPieceTokenizer "
            "--tokenizer-model-type bert-large-uncased",
            {"  dialect: tfrecord\n", "  train: [a.tfrecord, b.tfrecord]\n",
             "  valid: c.tfrecord\n", "  split: [1, 0, 0]\n"}}}) {
    const std::string deck =
        values_of(first_release("pretrain_bert.py", one.distributed, one.flags).deck);
    for (const char* text :
         {"  family: bert\n", "  sequence: 512\n", "  max_predictions: 80\n", "  type: linear\n",
          "  peak: 0.0001\n", "  compute: fp16\n", "  embedding: fp32\n", "  zero: 0\n"})
      EXPECT_NE(deck.find(text), std::string::npos) << text << "\n" << deck;
    for (const std::string& text : one.lines)
      EXPECT_NE(deck.find(text), std::string::npos) << text << "\n" << deck;
  }
}

TEST(Recipes, UnevenPipeline) {
  const Result result = convert({.file = kData / "r3_uneven_pipeline.sh"});
  expect_deck(result, "r3.yaml");
  EXPECT_NE(result.deck.find("32 = tensor 1 x pipeline 8 x data 4"), std::string::npos);
}

TEST(Recipes, BenchmarkOfLayouts) {
  const fs::path script = kData / "r4_benchmark.sh";
  EXPECT_EQ(message_of<DataError>([&] { convert({.file = script}); }),
            fmt::format("'{}' has 3 training commands, in lines 33, 36, 41: choose one with --line",
                        script.string()));
  expect_deck(convert({.file = script, .line = 33}), "r4_data.yaml");
  expect_deck(convert({.file = script, .line = 36}), "r4_tensor.yaml");
  expect_deck(convert({.file = script, .line = 41}), "r4_pipeline.yaml");
}

TEST(Recipes, LlamaOfMegatronCore) {
  const fs::path script = kData / "core_llama3.sh";
  const Result result = convert(
      {.file = script, .arguments = {"runs/llama3", "events", "models/llama3/", "data/pile"}});
  expect_deck(result, "core_llama3.yaml");
  EXPECT_NE(result.deck.find("# Its ranks: 8 "), std::string::npos) << result.deck;
  // Without arguments it has no data: a note says so.
  const Result bare = convert({.file = script});
  EXPECT_NE(bare.deck.find("  vocab: 128257 "), std::string::npos) << bare.deck;
  EXPECT_NE(bare.deck.find("  output: checkpoints/llama3_8b "), std::string::npos) << bare.deck;
  EXPECT_TRUE(std::any_of(bare.notes.begin(), bare.notes.end(), [](const std::string& note) {
    return note.find("names no dataset") != std::string::npos;
  }));
}

TEST(Recipes, SaysWhereEachKeyComesFrom) {
  const Result result = convert({.words = {"mpirun",
                                           "-n",
                                           "2",
                                           "python3",
                                           "pretrain_gpt.py",
                                           "--num-layers=2",
                                           "--hidden-size",
                                           "64",
                                           "--num-attention-heads",
                                           "4",
                                           "--seq_length",
                                           "32",
                                           "--micro-batch-size",
                                           "4",
                                           "--lr",
                                           ".001",
                                           "--train-iters",
                                           "10",
                                           "--tokenizer-type",
                                           "NullTokenizer",
                                           "--vocab-size",
                                           "100",
                                           "--num-workers",
                                           "2",
                                           "--recompute-activations",
                                           "--eval-iters",
                                           "0"}});
  const auto has = [&](const char* text) {
    EXPECT_NE(result.deck.find(text), std::string::npos) << text << "\n" << result.deck;
  };
  has("  layers: 2                           # --num-layers 2\n");
  has("  peak: 0.001                         # --lr .001\n");
  has("  global: 8                           # micro-batch 4 * accumulation steps 1 * data ranks "
      "2");
  has("  type: linear                        # the default of Megatron-LM\n");
  has("  compute: fp32                       # the default of Megatron-LM\n");
  has("  vocab: 101                          # --vocab-size 100, and the end of document\n");
  has("#   --num-workers 2: samples are read through a memory-mapped file\n");
  ASSERT_EQ(result.notes.size(), 2u);
  EXPECT_NE(
      result.notes[0].find("--recompute-activations: Megatron-LM recomputes the core of attention"),
      std::string::npos)
      << result.notes[0];
  const deck::Key* key = deck::find_key("recompute.granularity");
  const bool built = key->built.empty() || std::find(key->built.begin(), key->built.end(),
                                                     "selective") != key->built.end();
  const std::string unbuilt = "recompute.granularity: selective (--recompute-activations)";
  EXPECT_EQ(
      std::find(result.unbuilt.begin(), result.unbuilt.end(), unbuilt) == result.unbuilt.end(),
      built);
}

void check_rows(const std::vector<Flag>& table) {
  std::set<std::string_view> names;
  for (const Flag& flag : table) {
    EXPECT_TRUE(names.insert(flag.name).second) << flag.name << " has two rows";
    EXPECT_FALSE(flag.name.starts_with('-')) << flag.name;
    const bool explains = flag.fate == Fate::dropped || flag.fate == Fate::refused;
    EXPECT_EQ(explains, !flag.note.empty()) << flag.name;
    if (flag.fate == Fate::key || !flag.key.empty()) {
      EXPECT_NE(deck::find_key(flag.key), nullptr) << flag.name << " names '" << flag.key << "'";
    }
    if (flag.fate == Fate::key && flag.takes == Takes::nothing) {
      EXPECT_FALSE(flag.word.empty()) << flag.name << " stands for no value";
    }
  }
}

TEST(FlagTable, NamesEveryFlagOnceAndOnlyKeysThatExist) { check_rows(command_flags()); }
TEST(FlagTable, NamesEveryJsonKeyOnceAndOnlyKeysThatExist) { check_rows(json_keys()); }

TEST(FlagTable, FindsBothSpellings) {
  ASSERT_NE(find_flag(command_flags(), "deepspeed_config"), nullptr);
  EXPECT_EQ(find_flag(command_flags(), "deepspeed_config"),
            find_flag(command_flags(), "deepspeed-config"));
  EXPECT_EQ(find_flag(command_flags(), "num-layer"), nullptr);
  EXPECT_EQ(suggestion(command_flags(), "num-layer", "--"), "; did you mean '--num-layers'?");
  EXPECT_EQ(suggestion(command_flags(), "zzzzzzzz", "--"), "");
}

TEST(FlagTable, BothNormsOfMegatronsLogAreOneKey) {
  for (const char* name : {"log-params-norm", "log-num-zeros-in-grad"}) {
    const Flag* flag = find_flag(command_flags(), name);
    ASSERT_NE(flag, nullptr) << name;
    EXPECT_EQ(flag->key, "log.norms") << name;
    EXPECT_EQ(flag->word, "true") << name;
  }
}

}  // namespace
}  // namespace trireme::convert::flags
