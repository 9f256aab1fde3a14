// GPT-2 and BERT as Hugging Face's transformers keeps them.
#include <fmt/format.h>

#include "convert/huggingface/format.hpp"
#include "core/error.hpp"
#include "core/files.hpp"

namespace trireme::convert::huggingface {

// GPT-2. Its Conv1D weights are [in, out], ours [out, in]; all else is the same: pre-norm blocks,
// GELU in the tanh form ("gelu_new"), q, k and v in one projection with heads in order.

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
  const double dropout = config.number("resid_pdrop", 0.1),
               of_embeddings = config.number("embd_pdrop", 0.1);
  if (dropout != of_embeddings)
    source.notes.push_back(fmt::format(
        "model.dropout.hidden is \"resid_pdrop\", {}, and drops embeddings, too, of which "
        "\"embd_pdrop\" is {}",
        dropout, of_embeddings));
  std::string text = fmt::format(
      "model:\n  layers: {}\n  hidden: {}\n  heads: {}\n  ffn: {}\n  sequence: {}\n"
      "  positions: {}\n  vocab: {}\n  dropout: {{attention: {}, hidden: {}}}\n"
      "  init_std: {}\n  layernorm_eps: {}\n",
      layers, hidden, heads, config.size("n_inner", 4 * hidden), positions, positions,
      config.size("vocab_size"), config.number("attn_pdrop", 0.1), dropout, init_std(source),
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

// BERT: with norms after the sublayers BertForPreTraining, with norms before them
// MegatronBertForPreTraining; ...ForMaskedLM without the binary head. q, k and v are three tensors;
// the GELU is the exact one.

namespace {

constexpr const char* kMegatronBert = "megatron-bert";

/// Norms are "gamma" and "beta" in the files of Google's models.
std::vector<std::string> bert_spellings(const std::string& name) {
  std::vector<std::string> names = {name};
  for (const auto& [last, old] : {std::pair{".weight", ".gamma"}, {".bias", ".beta"}}) {
    const std::string ending = std::string("LayerNorm") + last;
    if (name.ends_with(ending))
      names.push_back(name.substr(0, name.size() - std::string(last).size()) + old);
  }
  return names;
}

/// MegatronBert names norms after the sublayer that they precede, and the last one "encoder.ln".
std::vector<std::string> megatron_bert_spellings(const std::string& name) {
  std::string own = name;
  for (const auto& [theirs, megatron] :
       {std::pair<std::string, std::string>{".attention.output.LayerNorm.", ".attention.ln."},
        {".output.LayerNorm.", ".ln."}})
    if (const std::size_t at = own.find(theirs); at != std::string::npos)
      own.replace(at, theirs.size(), megatron);
  return {own};
}

bool is_post_norm(const deck::Deck& deck) { return deck.model.bert.post_norm.value_or(false); }
bool is_pre_norm(const deck::Deck& deck) { return !is_post_norm(deck); }

bool is_bert_buffer(const std::string& name) {
  return name == "bert.embeddings.position_ids" || name == "bert.embeddings.token_type_ids";
}

std::string bert_deck(const Source& source) {
  const ConfigReader& config = source.config;
  config.require("hidden_act", {"gelu"}, "Trireme's BERT has the exact GELU, \"gelu\"");
  config.require("position_embedding_type", {"absolute"}, "Trireme's BERT has absolute positions");
  config.require("type_vocab_size", {2}, "Trireme's BERT has two types of tokens");
  config.require("is_decoder", {false}, "Trireme's BERT is no decoder");
  config.require("add_cross_attention", {false}, "Trireme has no cross attention");
  const bool binary = source.has_tensor("cls.seq_relationship.weight");
  const std::int64_t positions = config.size("max_position_embeddings", 512);
  std::string text = fmt::format(
      "model:\n  family: bert\n  layers: {}\n  hidden: {}\n  heads: {}\n  ffn: {}\n"
      "  sequence: {}\n  positions: {}\n  vocab: {}\n"
      "  dropout: {{attention: {}, hidden: {}}}\n  init_std: {}\n  layernorm_eps: {}\n"
      "  tie_embeddings: {}\n  bert: {{post_norm: {}, binary_head: {}}}\n",
      config.size("num_hidden_layers"), config.size("hidden_size"),
      config.size("num_attention_heads"), config.size("intermediate_size"), positions, positions,
      config.size("vocab_size"), config.number("attention_probs_dropout_prob", 0.1),
      config.number("hidden_dropout_prob", 0.1), init_std(source),
      config.number("layer_norm_eps", 1e-12), config.flag("tie_word_embeddings", true),
      config.text("model_type", "") != kMegatronBert, binary);
  std::string tokenizer = wordpiece_text(source.folder, source.notes);
  if (tokenizer.empty()) tokenizer = sentencepiece_text(source.folder);
  if (tokenizer.empty()) {
    source.notes.emplace_back(
        "there is no vocab.txt and no tokenizer.model: data.bert.dialect is tfrecord, which needs "
        "no tokenizer");
    return text + "data: {bert: {dialect: tfrecord}}\n";
  }
  text += fmt::format("data:\n  tokenizer: {}\n", tokenizer);
  // The published models learnt to tell whether the second sentence is the next.
  return binary ? text + "  bert: {dialect: v0, sentence_task: next}\n" : text;
}

nlohmann::ordered_json bert_json(const Target& target) {
  const deck::Model& model = target.deck.model;
  const bool post = is_post_norm(target.deck);
  const bool binary = target.spec.head.sentence_classes > 0;
  nlohmann::ordered_json json = {{"architectures",
                                  {fmt::format("{}Bert{}", post ? "" : "Megatron",
                                               binary ? "ForPreTraining" : "ForMaskedLM")}},
                                 {"model_type", post ? "bert" : kMegatronBert},
                                 {"hidden_act", "gelu"},
                                 {"num_hidden_layers", model.layers},
                                 {"hidden_size", model.hidden},
                                 {"num_attention_heads", model.heads},
                                 {"intermediate_size", model.ffn},
                                 {"max_position_embeddings", model.positions},
                                 {"vocab_size", target.spec.vocab},
                                 {"type_vocab_size", target.spec.embedding.token_types},
                                 {"layer_norm_eps", model.layernorm_eps},
                                 {"initializer_range", model.init_std},
                                 {"attention_probs_dropout_prob", model.dropout.attention},
                                 {"hidden_dropout_prob", model.dropout.hidden},
                                 {"tie_word_embeddings", target.spec.head.tied},
                                 {"torch_dtype", torch_name(target.dtype)}};
  return json;
}

}  // namespace

Format bert_format() {
  return {.family = deck::Family::bert,
          .represents = &is_post_norm,
          .title = "BERT",
          .model_types = {"bert"},
          .copies = {{"cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"},
                     {"cls.predictions.decoder.bias", "cls.predictions.bias"}},
          .spellings = &bert_spellings,
          .is_redundant = &is_bert_buffer,
          .deck_text = &bert_deck,
          .config = &bert_json};
}

Format megatron_bert_format() {
  Format format = bert_format();
  format.represents = &is_pre_norm;
  format.title = "MegatronBert";
  format.model_types = {kMegatronBert};
  format.spellings = &megatron_bert_spellings;
  return format;
}

}  // namespace trireme::convert::huggingface
