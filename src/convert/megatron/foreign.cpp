// Names of tensors, the search for the files of a checkpoint, and the deck that its arguments mean.
#include "convert/megatron/foreign.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "convert/convert.hpp"
#include "convert/flags/recipe.hpp"
#include "core/error.hpp"
#include "core/files.hpp"

namespace trireme::convert::megatron {

namespace fs = std::filesystem;

namespace {

/// A module of Megatron-LM and Trireme's name for it.
struct Name {
  std::string_view theirs, ours;
};

// Of a layer: Megatron-LM since 2019, and Megatron-Core with and without Transformer Engine's fused
// norms.
constexpr Name kLayerModules[] = {{"input_layernorm", "norm1"},
                                  {"input_norm", "norm1"},
                                  {"self_attention.linear_qkv.layer_norm", "norm1"},
                                  {"attention.query_key_value", "attention/qkv"},
                                  {"self_attention.query_key_value", "attention/qkv"},
                                  {"self_attention.linear_qkv", "attention/qkv"},
                                  {"self_attention.q_layernorm", "attention/q_norm"},
                                  {"self_attention.k_layernorm", "attention/k_norm"},
                                  {"attention.dense", "attention/projection"},
                                  {"self_attention.dense", "attention/projection"},
                                  {"self_attention.linear_proj", "attention/projection"},
                                  {"post_attention_layernorm", "norm2"},
                                  {"post_attention_norm", "norm2"},
                                  {"pre_mlp_layernorm", "norm2"},
                                  {"mlp.linear_fc1.layer_norm", "norm2"},
                                  {"mlp.dense_h_to_4h", "mlp/up"},
                                  {"mlp.linear_fc1", "mlp/up"},
                                  {"mlp.dense_4h_to_h", "mlp/down"},
                                  {"mlp.linear_fc2", "mlp/down"}};

constexpr Name kModelTensors[] = {{"word_embeddings.weight", "embedding/word"},
                                  {"position_embeddings.weight", "embedding/position"},
                                  {"word_embeddings.norm.weight", "embedding/norm/weight"},
                                  {"word_embeddings.norm.bias", "embedding/norm/bias"},
                                  {"final_layernorm.weight", "final_norm/weight"},
                                  {"final_layernorm.bias", "final_norm/bias"},
                                  {"final_norm.weight", "final_norm/weight"},
                                  {"final_norm.bias", "final_norm/bias"},
                                  {"word_embeddings_for_head.weight", "head/weight"},
                                  {"output_layer.weight", "head/weight"},
                                  // BERT.
                                  {"tokentype_embeddings.weight", "embedding/token_type"},
                                  {"pooler.dense.weight", "pooler/weight"},
                                  {"pooler.dense.bias", "pooler/bias"},
                                  {"lm_head.dense.weight", "masked_lm/dense/weight"},
                                  {"lm_head.dense.bias", "masked_lm/dense/bias"},
                                  {"lm_head.layernorm.weight", "masked_lm/norm/weight"},
                                  {"lm_head.layernorm.bias", "masked_lm/norm/bias"},
                                  {"lm_head.layer_norm.weight", "masked_lm/norm/weight"},
                                  {"lm_head.layer_norm.bias", "masked_lm/norm/bias"},
                                  {"lm_head.bias", "head/bias"},
                                  {"output_layer.bias", "head/bias"},
                                  {"binary_head.weight", "sentence/weight"},
                                  {"binary_head.bias", "sentence/bias"}};

constexpr std::string_view kWrappers[] = {"module.",    "model.",        "language_model.",
                                          "encoder.",   "transformer.",  "decoder.",
                                          "embedding.", "tied_modules.", "embed."};

std::string_view without_wrappers(std::string_view name) {
  for (bool found = true; found;) {
    found = false;
    for (const std::string_view wrapper : kWrappers)
      if (name.starts_with(wrapper)) {
        name.remove_prefix(wrapper.size());
        found = true;
      }
  }
  return name;
}

/// "norm1/weight" for "input_layernorm.weight" or "...layer_norm_weight"; "" for unknown names.
std::string layer_tensor(std::string_view name) {
  const std::size_t end = name.find_last_of("._");
  if (end == std::string_view::npos) return "";
  const std::string_view kind = name.substr(end + 1);
  if (kind != "weight" && kind != "bias") return "";
  for (const Name& module : kLayerModules)
    if (module.theirs == name.substr(0, end)) return fmt::format("{}/{}", module.ours, kind);
  return "";
}

/// The text of the file `name` in `folder`, without blanks around it; "" if there is none.
std::string text_of(const fs::path& folder, const char* name) {
  std::error_code ignored;
  if (!fs::is_regular_file(folder / name, ignored)) return "";
  std::string text = read_file(folder / name);
  const auto is_blank = [](char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; };
  while (!text.empty() && is_blank(text.back())) text.pop_back();
  return text;
}

/// The folder of one iteration in `path`, or `path` itself.
fs::path iteration_folder(const fs::path& path) {
  const char* const tracker = "latest_checkpointed_iteration.txt";
  if (const std::string latest = text_of(path, tracker); !latest.empty()) {
    if (latest == "release") return path / "release";
    int iteration = -1;
    const char* const end = latest.data() + latest.size();
    if (std::from_chars(latest.data(), end, iteration).ptr != end || iteration < 0)
      throw DataError("'{}': expected the number of an iteration, or release",
                      (path / tracker).string());
    return path / fmt::format("iter_{:07}", iteration);
  }
  for (const char* name : {"latest", "latest_universal"})
    if (const std::string latest = text_of(path, name); !latest.empty()) return path / latest;
  return path;
}

bool has_file(const fs::path& folder, std::string_view ending) {
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    if (entry.path().filename().string().ends_with(ending)) return true;
  return false;
}

}  // namespace

std::optional<Key> parse_key(std::string_view name) {
  name = without_wrappers(name);
  for (const Name& tensor : kModelTensors)
    if (name == tensor.theirs) return Key{-1, std::string(tensor.ours)};
  constexpr std::string_view kLayers = "layers.";
  if (!name.starts_with(kLayers)) return std::nullopt;
  name.remove_prefix(kLayers.size());
  int layer = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
  const auto digits = static_cast<std::size_t>(end - name.data());
  if (error != std::errc() || layer < 0 || digits >= name.size()) return std::nullopt;
  std::string tensor = layer_tensor(name.substr(digits + 1));
  return tensor.empty() ? std::nullopt : std::optional(Key{layer, std::move(tensor)});
}

bool is_redundant(std::string_view name) {
  for (const std::string_view part : {"_extra_state", "rotary_pos_emb", "masked_bias", "inv_freq"})
    if (name.find(part) != std::string_view::npos) return true;
  return name.ends_with("attention.bias");
}

std::string logical_name(const Key& key, int first_layer) {
  return key.layer < 0 ? key.name : fmt::format("layers/{}/{}", first_layer + key.layer, key.name);
}

std::vector<std::pair<std::string, torch::Tensor>> flatten(const torch::Value& value) {
  // State dicts are nested by modules; more levels than modules have are no state dict.
  constexpr std::size_t kMaxLevels = 16, kMaxEntries = 1'000'000;
  std::vector<std::pair<std::string, torch::Tensor>> tensors;
  struct Level {
    const torch::Value* value;
    std::size_t next = 0;
    std::string path;
  };
  std::vector<Level> levels{{&value}};
  std::size_t entries = 0;
  while (!levels.empty()) {
    Level& level = levels.back();
    const auto& fields = level.value->fields();
    if (level.next == fields.size()) {
      levels.pop_back();
      continue;
    }
    const auto& [key, inner] = fields[level.next++];
    if (++entries > kMaxEntries)
      throw DataError("a state dict has more than {} entries", kMaxEntries);
    if (!key->is(torch::Value::Kind::text)) continue;
    std::string path = level.path + key->text;
    if (auto tensor = torch::as_tensor(*inner))
      tensors.emplace_back(std::move(path), std::move(*tensor));
    else if (levels.size() < kMaxLevels && !inner->fields().empty())
      levels.push_back({inner, 0, path + "."});
  }
  return tensors;
}

Foreign read_foreign(const fs::path& path) {
  if (!fs::is_directory(path))
    throw IoError("'{}' is no folder: name the folder that --save of Megatron-LM named",
                  path.string());
  const fs::path folder = iteration_folder(path);
  if (!fs::is_directory(folder))
    throw IoError("'{}' names '{}' as its newest checkpoint, which does not exist", path.string(),
                  folder.filename().string());
  if (fs::is_directory(folder / "zero")) return read_universal(folder);
  if (has_file(folder, "_model_states.pt") || has_file(folder, "-model_states.pt"))
    return read_deepspeed(folder);
  if (fs::exists(folder / ".metadata")) return read_distributed(folder);
  return read_megatron(folder);
}

void add_shard(Tensors& tensors, const std::string& name, int rank, Shard shard) {
  auto& shards = tensors[name];
  if (static_cast<int>(shards.size()) == rank) shards.push_back(std::move(shard));
}

// ---------------------------------------------------------------------------- the deck

namespace {

using flags::Fate;
using flags::Flag;
using flags::Takes;
using torch::Value;

/// Arguments that Megatron-LM computes from others, or that name the place of this checkpoint.
bool is_derived(std::string_view name, const Value& arguments) {
  for (const std::string_view other :
       {"load", "finetune", "no-load-optim", "no-load-rng", "deepspeed", "deepspeed-config",
        "zero-stage", "tensorboard-dir", "world-size"})
    if (name == other) return true;
  const auto is_set = [&](const char* key) {
    const Value* value = arguments.find(key);
    return value && !value->is(Value::Kind::none);
  };
  // Iterations follow from samples.
  if (name == "train-iters") return is_set("train_samples");
  if (name == "lr-decay-iters") return is_set("train_samples") || is_set("lr_decay_samples");
  if (name == "start-weight-decay" || name == "end-weight-decay") {
    const Value* style = arguments.find("weight_decay_incr_style");
    return !style || style->text == "constant";
  }
  if (name == "encoder-num-layers" || name == "encoder-seq-length") return true;
  return false;
}

/// A number as a command line has it: whole ones without a point.
std::string text_of(const Value& value) {
  if (value.is(Value::Kind::integer)) return fmt::format("{}", value.integer);
  if (!value.is(Value::Kind::real)) return value.text;
  const bool is_whole = std::abs(value.real) < 1e15 && value.real == std::floor(value.real);
  return is_whole ? fmt::format("{:.0f}", value.real) : fmt::format("{}", value.real);
}

/// Appends the flag of one argument, if it sets a key.
void add_words(const Flag& flag, const Value& value, std::vector<std::string>& words) {
  const std::string name = fmt::format("--{}", flag.name);
  if (flag.takes == Takes::nothing) {
    if (value.is(Value::Kind::boolean) && value.integer != 0) words.push_back(name);
    return;
  }
  // Refused flags that are None where they were not given; others have values for "not used".
  constexpr std::string_view kUnsetIsNone[] = {"activation-func-clamp-value",
                                               "no-rope-freq",
                                               "mrope-section",
                                               "glu-activation",
                                               "softmax-scale",
                                               "experimental-attention-variant",
                                               "mtp-num-layers",
                                               "heterogeneous-layers-config-path"};
  const bool may_be_unused = flag.fate == Fate::refused &&
                             std::ranges::find(kUnsetIsNone, flag.name) == std::end(kUnsetIsNone);
  if (may_be_unused || value.is(Value::Kind::none)) return;
  std::vector<std::string> texts;
  if (value.is(Value::Kind::list))
    for (const Value* item : value.items) texts.push_back(text_of(*item));
  else if (value.is_number() || value.is(Value::Kind::text))
    texts.push_back(text_of(value));
  if (texts.empty()) return;
  words.push_back(name);
  words.insert(words.end(), texts.begin(), texts.end());
}

}  // namespace

std::string deck_text(const Foreign& foreign, std::vector<std::string>& notes) {
  if (!foreign.arguments)
    throw DataError("'{}' does not contain the arguments of its run: give its deck with --deck",
                    foreign.folder.string());
  const Value& arguments = *foreign.arguments;
  const bool bert = foreign.weights.contains("embedding/token_type");
  std::vector<std::string> words{bert ? "pretrain_bert.py" : "pretrain_gpt.py"};
  for (const Flag& flag : flags::command_flags()) {
    if (flag.fate == Fate::dropped || is_derived(flag.name, arguments)) continue;
    if (flag.name == "disable-bias-linear") {  // the one switch that is stored by its opposite
      if (const Value* bias = arguments.find("add_bias_linear");
          bias && bias->is(Value::Kind::boolean) && bias->integer == 0)
        words.emplace_back("--disable-bias-linear");
      continue;
    }
    std::string name(flag.name);
    std::replace(name.begin(), name.end(), '-', '_');
    if (const Value* value = arguments.find(name)) add_words(flag, *value, words);
  }
  flags::Request request{.words = std::move(words),
                         .words_of = fmt::format("the arguments in '{}'", foreign.folder.string())};
  if (const Value* ranks = arguments.find("world_size");
      ranks && ranks->is(Value::Kind::integer) && ranks->integer > 0)
    request.ranks = ranks->integer;
  const flags::Result result = flags::convert(request);
  notes.insert(notes.end(), result.notes.begin(), result.notes.end());
  return result.deck;
}

}  // namespace trireme::convert::megatron
