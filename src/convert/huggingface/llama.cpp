// The dense family as Hugging Face's transformers keeps it: Llama 2 and 3, Qwen2.5 and Qwen3,
// Mistral, OLMo-2, SmolLM2. q, k and v, and gate and up, are separate tensors; rotary pairs are the
// two halves of a head, as in Trireme.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "convert/huggingface/format.hpp"
#include "core/error.hpp"
#include "deck/choices.hpp"

namespace trireme::convert::huggingface {
namespace {

std::vector<std::string> llama_spellings(const std::string& name) { return {name}; }

/// Frequencies, which old files have.
bool is_llama_buffer(const std::string& name) { return name.ends_with("rotary_emb.inv_freq"); }

[[noreturn]] void refuse_key(const ConfigReader& config, const char* key, const std::string& why) {
  throw DataError("'{}': \"{}\" is {}; {}", config.file(), key, config[key].dump(), why);
}

/// What config.json says of rotary positions: rope_scaling (before transformers 5, where it is
/// given) or rope_parameters.
class RopeReader {
 public:
  explicit RopeReader(const ConfigReader& config)
      : config_(config),
        key_(config["rope_scaling"].is_null() || config["rope_scaling"] == nlohmann::json::object()
                 ? "rope_parameters"
                 : "rope_scaling") {
    if (!config[key_].is_null() && !config[key_].is_object())
      refuse("expected an object with \"rope_type\"");
    for (const char* layers : {"full_attention", "sliding_attention"})
      if (value(layers).is_object())
        refuse_key(config, key_, "Trireme has the same positions in all layers");
  }

  nlohmann::json value(const char* name) const {
    const nlohmann::json& rope = config_[key_];
    return rope.is_object() && rope.contains(name) ? rope[name] : nlohmann::json();
  }
  double number(const char* name) const {
    if (!value(name).is_number()) refuse(fmt::format("\"{}\" is missing or no number", name));
    return value(name).get<double>();
  }
  double number(const char* name, double fallback) const {
    return value(name).is_null() ? fallback : number(name);
  }
  [[noreturn]] void refuse(const std::string& why) const { refuse_key(config_, key_, why); }

  double theta() const { return number("rope_theta", config_.number("rope_theta", 10000.0)); }
  std::string type() const {
    const nlohmann::json named = value("rope_type").is_null() ? value("type") : value("rope_type");
    if (named.is_null() && value("factor").is_null()) return "default";
    return named.is_string() ? named.get<std::string>() : "";
  }
  /// The context of the training before the scaling, of which older files have another place.
  std::int64_t original(std::int64_t positions) const {
    const char* const name = "original_max_position_embeddings";
    return config_.size(name, std::llround(number(name, static_cast<double>(positions))));
  }

 private:
  const ConfigReader& config_;
  const char* key_;
};

/// Throws DataError for a YaRN that Trireme does not compute.
void check_yarn(const RopeReader& rope) {
  const double usual = 0.1 * std::log(std::max(rope.number("factor"), 1.0)) + 1.0;
  if (std::abs(rope.number("attention_factor", usual) - usual) > 1e-6 * usual)
    rope.refuse(
        fmt::format("Trireme's \"attention_factor\" of yarn is 0.1 ln factor + 1 = {:.6g}", usual));
  for (const char* other : {"mscale", "mscale_all_dim"})
    if (!rope.value(other).is_null())
      rope.refuse(fmt::format("Trireme's factor of yarn is fixed, without \"{}\"", other));
  if (rope.value("truncate") == false)
    rope.refuse(
        "Trireme's ramp of yarn begins and ends at whole pairs, as with \"truncate\": true");
}

/// model.position: rotary positions, of which `positions` is the longest context.
std::string position_text(const ConfigReader& config, std::int64_t positions) {
  const RopeReader rope(config);
  if (rope.number("partial_rotary_factor", 1.0) != 1.0) rope.refuse("Trireme rotates whole heads");
  std::string text = fmt::format("  position:\n    theta: {}\n", rope.theta());
  const std::string type = rope.type();
  if (type == "default") return text;
  if (type != "linear" && type != "llama3" && type != "yarn")
    rope.refuse("model.position.scaling is linear, llama3 or yarn");
  text += fmt::format("    scaling: {}\n    factor: {}\n", type, rope.number("factor"));
  if (type == "linear") return text;
  text += fmt::format("    original: {}\n", rope.original(positions));
  if (type == "llama3")
    return text + fmt::format("    low: {}\n    high: {}\n", rope.number("low_freq_factor"),
                              rope.number("high_freq_factor"));
  check_yarn(rope);
  return text + fmt::format("    low: {}\n    high: {}\n", rope.number("beta_slow", 1),
                            rope.number("beta_fast", 32));
}

/// What a model type implies in addition to its config.json's values, and its class's values of
/// keys that a file may leave out. Source: transformers 5, models/*/configuration_*.py.
struct Variant {
  const char* type;
  const char* architecture;
  const char* keys;  ///< of the deck's model
  std::int64_t positions;
  std::int64_t kv_heads;  ///< 0: as many as query heads
  double eps;
};
constexpr Variant kVariants[] = {
    {"llama", "LlamaForCausalLM", "", 2048, 0, 1e-6},
    {"mistral", "MistralForCausalLM", "", 4096 * 32, 8, 1e-6},
    {"qwen2", "Qwen2ForCausalLM", "  bias: qkv\n", 32768, 32, 1e-6},
    {"qwen3", "Qwen3ForCausalLM", "  qk_norm: head\n", 32768, 32, 1e-6},
    {"olmo2", "Olmo2ForCausalLM", "  norm_placement: output\n  qk_norm: width\n", 2048, 0, 1e-5},
};

/// The window of attention in at least one layer, if there is one.
struct Window {
  std::int64_t tokens = 0;
  bool all_layers = true;
};

std::optional<Window> window_of(const ConfigReader& config, const std::string& type) {
  const bool optional = type == "qwen2" || type == "qwen3";
  if (!optional && type != "mistral") return std::nullopt;  // transformers reads no such key
  if (optional && !config.flag("use_sliding_window", false)) return std::nullopt;
  const bool by_default = type == "mistral" && !config.has("sliding_window");
  if (!by_default && config["sliding_window"].is_null()) return std::nullopt;
  const Window window{.tokens = by_default ? 4096 : config.size("sliding_window")};
  if (const nlohmann::json& types = config["layer_types"]; types.is_array()) {
    const auto sliding = std::ranges::count(types, nlohmann::json("sliding_attention"));
    if (sliding == 0) return std::nullopt;
    return Window{window.tokens, sliding == std::ssize(types)};
  }
  if (!optional) return window;
  // Layers from this one on have the window.
  const nlohmann::json& first = config["max_window_layers"];
  const std::int64_t full = first.is_number_integer() ? first.get<std::int64_t>() : 28;
  if (full >= config.size("num_hidden_layers")) return std::nullopt;
  return Window{window.tokens, full <= 0};
}

std::string llama_deck(const Source& source) {
  const ConfigReader& config = source.config;
  const std::string type = config.text("model_type", "llama");
  const auto* variant =
      std::ranges::find_if(kVariants, [&](const Variant& one) { return one.type == type; });
  if (type != "qwen2")  // whose class has no such key
    config.require("attention_bias", {false}, "Trireme has biases of q, k and v alone, as Qwen2.5");
  config.require("mlp_bias", {false}, "Trireme's gated MLP has no bias");
  config.require("partial_rotary_factor", {1.0, 1}, "Trireme rotates whole heads");
  if (!config["quantization_config"].is_null())
    refuse_key(config, "quantization_config", "quantized weights are not read");
  const std::string activation = config.text("hidden_act", "silu");
  if (activation != "silu" && activation != "gelu_pytorch_tanh" && activation != "gelu_new")
    refuse_key(config, "hidden_act",
               "model.activation is swiglu (\"silu\") or geglu "
               "(\"gelu_pytorch_tanh\")");
  const std::int64_t hidden = config.size("hidden_size"),
                     heads = config.size("num_attention_heads");
  const std::int64_t head_dim =
      config.size("head_dim", type == "qwen3" ? 128 : std::max<std::int64_t>(1, hidden / heads));
  const bool names_kv_heads = config.has("num_key_value_heads") || variant->kv_heads == 0;
  const std::int64_t kv_heads =
      names_kv_heads ? config.size("num_key_value_heads", heads) : variant->kv_heads;
  const std::int64_t longest = config.size("max_position_embeddings", variant->positions);
  std::int64_t positions = longest;
  std::string window_key;
  if (const auto window = window_of(config, type); window && window->tokens < positions) {
    if (window->all_layers) {
      window_key = fmt::format("  window: {}\n", window->tokens);
    } else {
      source.notes.push_back(fmt::format(
          "some layers alone have a window of {} tokens, which the deck has no key for: "
          "model.positions is {}, not {}, so that contexts do not leave it",
          window->tokens, window->tokens, positions));
      positions = window->tokens;
    }
  }
  // Long contexts take much memory: a run may have shorter samples.
  const std::int64_t sequence = std::min<std::int64_t>(positions, 4096);
  std::string text = fmt::format(
      "model:\n  family: llama\n  layers: {}\n  hidden: {}\n  heads: {}\n  kv_heads: {}\n"
      "  head_dim: {}\n  ffn: {}\n  sequence: {}\n  positions: {}\n  vocab: {}\n"
      "  activation: {}\n{}{}  tie_embeddings: {}\n  dropout: {{attention: {}, hidden: 0}}\n"
      "  init_std: {}\n  layernorm_eps: {}\n",
      config.size("num_hidden_layers"), hidden, heads, kv_heads, head_dim,
      config.size("intermediate_size"), sequence, positions, config.size("vocab_size"),
      activation == "silu" ? "swiglu" : "geglu", variant->keys, window_key,
      config.flag("tie_word_embeddings", false), config.number("attention_dropout", 0),
      init_std(source), config.number("rms_norm_eps", variant->eps));
  text += position_text(config, longest);
  const std::string tokenizer = tokenizer_text(source.folder, source.notes);
  if (!tokenizer.empty()) text += fmt::format("data: {{tokenizer: {}}}\n", tokenizer);
  return text;
}

/// The model type that computes what the deck says. Throws DataError if there is none.
const Variant& variant_of(const deck::Model& model) {
  using deck::LinearBias, deck::NormPlacement, deck::QkNorm;
  const bool output = model.norm_placement == NormPlacement::output;
  const bool bias = model.bias == LinearBias::qkv;
  const QkNorm norm = model.qk_norm.value_or(QkNorm::none);
  const bool uneven = model.head_dim != model.hidden / model.heads;
  if (output && model.window)
    throw DataError("no model of transformers has model.norm_placement = output and model.window");
  if (output && !bias && norm == QkNorm::width && !uneven) return kVariants[4];
  if (!output && !bias && norm == QkNorm::head) return kVariants[3];
  if (!output && bias && norm == QkNorm::none && !uneven) return kVariants[2];
  // LlamaConfig has no window and refuses heads that do not divide the hidden size.
  if (!output && !bias && norm == QkNorm::none)
    return kVariants[uneven || model.hidden % model.heads != 0 || model.window ? 1 : 0];
  throw DataError(
      "no model of transformers has model.norm_placement = {}, model.qk_norm = {}, model.bias = {} "
      "and model.head_dim = {} together (OLMo-2 has output, width, none; Qwen3 pre, head, none; "
      "Qwen2 pre, none, qkv; Llama pre, none, none)",
      name_of(model.norm_placement.value_or(NormPlacement::pre)), name_of(norm),
      name_of(model.bias.value_or(LinearBias::none)), model.head_dim.value_or(0));
}

/// rope_parameters of transformers 5; without rope_theta it is rope_scaling of older releases.
nlohmann::ordered_json rope_json(const deck::Position& position) {
  using deck::PositionScaling;
  const PositionScaling scaling = position.scaling.value_or(PositionScaling::none);
  if (scaling == PositionScaling::none) return {{"rope_type", "default"}};
  nlohmann::ordered_json json = {{"rope_type", name_of(scaling)},
                                 {"factor", position.factor.value()}};
  if (position.original) json["original_max_position_embeddings"] = *position.original;
  if (scaling == PositionScaling::llama3) {
    json["low_freq_factor"] = position.low.value();
    json["high_freq_factor"] = position.high.value();
  } else if (scaling == PositionScaling::yarn) {
    json["beta_slow"] = position.low.value();
    json["beta_fast"] = position.high.value();
  }
  return json;
}

nlohmann::ordered_json llama_json(const Target& target) {
  const deck::Model& model = target.deck.model;
  const Variant& variant = variant_of(model);
  const std::string type = variant.type;
  const bool swiglu = model.activation != deck::GatedActivation::geglu;
  nlohmann::ordered_json json = {{"architectures", {variant.architecture}},
                                 {"model_type", type},
                                 {"hidden_act", swiglu ? "silu" : "gelu_pytorch_tanh"},
                                 {"num_hidden_layers", model.layers},
                                 {"hidden_size", model.hidden},
                                 {"num_attention_heads", model.heads},
                                 {"num_key_value_heads", model.kv_heads.value()},
                                 {"head_dim", model.head_dim.value()},
                                 {"intermediate_size", model.ffn},
                                 {"max_position_embeddings", model.positions},
                                 {"vocab_size", target.spec.vocab},
                                 {"rms_norm_eps", model.layernorm_eps},
                                 {"initializer_range", model.init_std},
                                 {"attention_dropout", model.dropout.attention},
                                 {"tie_word_embeddings", model.tie_embeddings},
                                 {"use_cache", true}};
  if (type != "qwen2" && type != "mistral") json["attention_bias"] = false;
  if (type == "llama") json["mlp_bias"] = false;
  const bool qwen = type == "qwen2" || type == "qwen3";
  if (qwen || type == "mistral")
    json["sliding_window"] =
        model.window ? nlohmann::ordered_json(*model.window) : nlohmann::ordered_json();
  if (qwen) json["use_sliding_window"] = model.window.has_value();
  if (qwen && model.window) json["max_window_layers"] = 0;
  // Older releases read the first two, transformers 5 the third.
  const nlohmann::ordered_json rope = rope_json(model.position);
  json["rope_theta"] = model.position.theta.value();
  json["rope_scaling"] = rope["rope_type"] == "default" ? nlohmann::ordered_json() : rope;
  json["rope_parameters"] = rope;
  json["rope_parameters"]["rope_theta"] = model.position.theta.value();
  for (const char* key : {"torch_dtype", "dtype"}) json[key] = torch_name(target.dtype);
  const auto id = [](std::optional<std::int64_t> token) {
    return token ? nlohmann::ordered_json(*token) : nlohmann::ordered_json();
  };
  json["bos_token_id"] = id(target.bos);
  json["eos_token_id"] = id(target.eod);
  json["pad_token_id"] = nullptr;
  return json;
}

}  // namespace

Format llama_format() {
  Format format{.family = deck::Family::llama,
                .title = "Llama",
                .model_types = {},
                .generates = true,
                .copies = {{"lm_head.weight", "model.embed_tokens.weight"}},
                .spellings = &llama_spellings,
                .is_redundant = &is_llama_buffer,
                .deck_text = &llama_deck,
                .config = &llama_json};
  for (const Variant& variant : kVariants) format.model_types.emplace_back(variant.type);
  return format;
}

}  // namespace trireme::convert::huggingface
