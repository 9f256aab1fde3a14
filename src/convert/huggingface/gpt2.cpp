// GPT-2 as Hugging Face's transformers keeps it. Its Conv1D weights are [in, out], ours [out, in];
// all else is the same: pre-norm blocks, GELU in the tanh form ("gelu_new"), q, k and v in one
// projection with heads in order.
#include <fmt/format.h>

#include "convert/huggingface/format.hpp"
#include "core/error.hpp"

namespace trireme::convert::huggingface {
namespace {

// Old files lack it.
constexpr const char* kGpt2Prefix = "transformer.";

std::vector<std::string> gpt2_spellings(const std::string& name) {
  return {kGpt2Prefix + name, name};
}

/// The causal masks of old files.
bool is_mask(const std::string& name) {
  const bool prefixed = name.starts_with(kGpt2Prefix);
  const std::string bare = prefixed ? name.substr(std::string(kGpt2Prefix).size()) : name;
  return bare.starts_with("h.") &&
         (bare.ends_with(".attn.bias") || bare.ends_with(".attn.masked_bias"));
}

std::string gpt2_deck(const Source& source) {
  const ConfigReader& config = source.config;
  config.require("activation_function", {"gelu_new", "gelu_pytorch_tanh"},
                 "Trireme's GELU is the tanh form, \"gelu_new\"");
  config.require("tie_word_embeddings", {true}, "model.family = gpt ties its embeddings");
  config.require("scale_attn_weights", {true}, "Trireme divides by the root of a head's width");
  config.require("scale_attn_by_inverse_layer_idx", {false}, "Trireme does not scale by layer");
  config.require("add_cross_attention", {false}, "Trireme has no cross attention");
  const std::int64_t layers = config.size("n_layer"), hidden = config.size("n_embd"),
                     heads = config.size("n_head"), positions = config.size("n_positions");
  if (hidden % heads != 0)
    throw DataError("'{}': \"n_head\" {} does not divide \"n_embd\" {}", config.file(), heads,
                    hidden);
  std::string text = fmt::format(
      "model:\n  layers: {}\n  hidden: {}\n  heads: {}\n  ffn: {}\n  sequence: {}\n"
      "  positions: {}\n  vocab: {}\n  dropout: {{attention: {}, hidden: {}}}\n"
      "  init_std: {}\n  layernorm_eps: {}\n",
      layers, hidden, heads, config.size("n_inner", 4 * hidden), positions, positions,
      config.size("vocab_size"), config.number("attn_pdrop", 0.1),
      config.number("resid_pdrop", 0.1), init_std(source),
      config.number("layer_norm_epsilon", 1e-5));
  const std::string tokenizer = tokenizer_text(source.folder, source.notes);
  if (!tokenizer.empty()) text += fmt::format("data: {{tokenizer: {}}}\n", tokenizer);
  return text;
}

nlohmann::ordered_json gpt2_json(const Target& target) {
  const deck::Model& model = target.deck.model;
  nlohmann::ordered_json json = {{"architectures", {"GPT2LMHeadModel"}},
                                 {"model_type", "gpt2"},
                                 {"activation_function", "gelu_new"},
                                 {"n_layer", model.layers},
                                 {"n_embd", model.hidden},
                                 {"n_head", model.heads},
                                 {"n_inner", model.ffn},
                                 {"n_positions", model.positions},
                                 {"n_ctx", model.positions},
                                 {"vocab_size", target.spec.vocab},
                                 {"layer_norm_epsilon", model.layernorm_eps},
                                 {"initializer_range", model.init_std},
                                 {"attn_pdrop", model.dropout.attention},
                                 {"embd_pdrop", model.dropout.hidden},
                                 {"resid_pdrop", model.dropout.hidden},
                                 {"tie_word_embeddings", true},
                                 {"torch_dtype", torch_name(target.dtype)}};
  // Without them transformers uses GPT-2's ids, which other vocabularies do not have.
  json["bos_token_id"] = target.eod ? nlohmann::json(*target.eod) : nlohmann::json();
  json["eos_token_id"] = json["bos_token_id"];
  return json;
}

}  // namespace

Format gpt2_format() {
  return {.family = deck::Family::gpt,
          .title = "GPT-2",
          .model_types = {"gpt2"},
          .transposes = true,
          .copies = {{"lm_head.weight", "wte.weight"}},
          .spellings = &gpt2_spellings,
          .is_redundant = &is_mask,
          .deck_text = &gpt2_deck,
          .config = &gpt2_json};
}

}  // namespace trireme::convert::huggingface
