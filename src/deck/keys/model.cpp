// The keys of the model: those of all families, with defaults that depend on the family; and the
// keys of one family alone, whose members are unset for another family.
#include "core/philox.hpp"
#include "deck/keys/row.hpp"

namespace trireme::deck {

void derive_ffn(Deck& deck) {
  const std::int64_t hidden = deck.model.hidden;
  const bool gated = deck.model.family == Family::llama;
  deck.model.ffn = gated ? (8 * hidden / 3 + 255) / 256 * 256 : 4 * hidden;
}

void derive_init(Deck& deck) {
  const bool normal =
      deck.model.family == Family::bert && !deck.model.bert.deep_init.value_or(false);
  deck.model.init = normal ? InitScheme::normal : InitScheme::scaled;
}

std::function<void(Deck&)> derive_dropout(double Dropout::*member) {
  return [=](Deck& deck) {
    deck.model.dropout.*member = deck.model.family == Family::llama ? 0.0 : 0.1;
  };
}

namespace {

void derive_mup_embedding(Deck& deck) {
  deck.model.mup.embedding.reset();
  if (deck.model.mup.base) deck.model.mup.embedding = 1.0;
}

}  // namespace

void model_keys(std::vector<Key>& rows) {
  rows.insert(
      rows.end(),
      {
          key(TRIREME_MEMBER(model.family))
              .by_default("gpt")
              .immutable()
              .help("Architecture of the model."),
          key(TRIREME_MEMBER(model.layers))
              .required()
              .from(1, kMaxLayers)
              .immutable()
              .help("Transformer layers."),
          key(TRIREME_MEMBER(model.hidden))
              .required()
              .from(1, kMaxWidth)
              .immutable()
              .help("Width of the residual stream; on GPUs at most 16384."),
          key(TRIREME_MEMBER(model.heads))
              .required()
              .from(1, kMaxWidth)
              .immutable()
              .help("Attention heads, of llama the query heads; divides model.hidden, on "
                    "GPUs into 256 or less."),
          key(TRIREME_MEMBER(model.ffn))
              .derived("4 * model.hidden; for llama 8/3, rounded up to 256", derive_ffn)
              .from(1, 4 * kMaxWidth)
              .immutable()
              .help("Width of the MLP."),
          key(TRIREME_MEMBER(model.sequence))
              .required()
              .from(1, kMaxSequence)
              .unit("tokens")
              .immutable()
              .help("Tokens of a training sample."),
          key(TRIREME_MEMBER(model.positions))
              .derived("model.sequence",
                       [](Deck& deck) { deck.model.positions = deck.model.sequence; })
              .from(1, kMaxSequence)
              .unit("tokens")
              .immutable()
              .help("The longest sequence: rows of the position embedding."),
          key(TRIREME_MEMBER(model.vocab))
              .derived("the tokenizer's", {})
              .from(1, kMaxVocab)
              .unit("tokens")
              .immutable()
              .help("Vocabulary size without padding; a checkpoint fits one size only."),
          key(TRIREME_MEMBER(model.dropout.attention))
              .derived("0.1; 0 for llama", derive_dropout(&Dropout::attention))
              .at_least(0)
              .below(1)
              .warn()
              .help("Dropout of attention probabilities."),
          key(TRIREME_MEMBER(model.dropout.hidden))
              .derived("0.1; 0 for llama", derive_dropout(&Dropout::hidden))
              .at_least(0)
              .below(1)
              .warn()
              .help("Dropout of embeddings and of each block's outputs."),
          key(TRIREME_MEMBER(model.init))
              .derived("scaled; bert: normal without model.bert.deep_init", derive_init)
              .warn()
              .help("Standard deviation of the initial weights that end a sublayer: init_std / "
                    "sqrt(2 layers) (scaled: GPT-2, Megatron-LM), init_std / sqrt(2 (layer + 1)) "
                    "(depth), or init_std as of all others (normal: Hugging Face's Llama, Qwen, "
                    "Mistral, OLMo-2)."),
          key(TRIREME_MEMBER(model.init_std))
              .by_default("0.02")
              .above(0)
              .warn()
              .help("Standard deviation of initial weights."),
          key(TRIREME_MEMBER(model.init_cutoff))
              .from(1, kMaxNormalCutoff)
              .unit("standard deviations")
              .warn()
              .help("Initial weights are drawn from a normal distribution that is truncated there "
                    "(OLMo-2: 3, with model.init: normal); unset: not truncated."),
          key(TRIREME_MEMBER(model.z_loss))
              .by_default("0")
              .at_least(0)
              .warn()
              .help("Coefficient of the z-loss, the mean of each token's squared log-sum-exp, in "
                    "the loss that is trained; not in losses that are reported."),
          key(TRIREME_MEMBER(model.mup.base))
              .from(1, kMaxWidth)
              .immutable()
              .help("muP: the model.hidden at which learning rates and model.init_std were tuned. "
                    "Wider models scale them: matrices' Adam rates, matrices' variances and logits "
                    "by base / hidden."),
          key(TRIREME_MEMBER(model.mup.base_head))
              .derived("elements of a head of this model", {})
              .from(1, kMaxWidth)
              .immutable()
              .help("muP: elements of a head at the base; attention scores are q k sqrt(base_head) "
                    "/ head."),
          key(TRIREME_MEMBER(model.mup.embedding))
              .derived("1 with model.mup.base", derive_mup_embedding)
              .above(0)
              .immutable()
              .help(
                  "muP: factor of the embeddings' sum, tuned with the rates and the same at every "
                  "width."),
          key(TRIREME_MEMBER(model.layernorm_eps))
              .by_default("1e-05")
              .above(0)
              .immutable()
              .help("Added to the variance in layer norms, to the mean square in RMS norms."),
          key(TRIREME_MEMBER(model.embedding_layernorm))
              .by_default("false")
              .immutable()
              .help("A layer norm on the word embedding."),
          key(TRIREME_MEMBER(model.tie_embeddings))
              .by_default("true")
              .immutable()
              .help("The head uses the word embedding's weights."),
      });
}

// ---- the keys of one family

namespace {

bool is_bert(const Deck& deck) { return deck.model.family == Family::bert; }

bool is_bert(const Deck& deck, BertDialect dialect) {
  return is_bert(deck) && deck.data.bert.dialect == dialect;
}

/// Sets a member of model.bert to `value` for bert.
std::function<void(Deck&)> for_bert(std::optional<bool> BertModel::*member, bool value) {
  return [=](Deck& deck) {
    deck.model.bert.*member = is_bert(deck) ? std::optional(value) : std::nullopt;
  };
}

// The dialect's row comes first: the defaults of the others depend on it.

void derive_dialect(Deck& deck) {
  deck.data.bert.dialect.reset();
  if (is_bert(deck)) deck.data.bert.dialect = BertDialect::megatron;
}

void derive_mask_probability(Deck& deck) {
  deck.data.bert.mask_probability.reset();
  if (is_bert(deck, BertDialect::megatron) || is_bert(deck, BertDialect::v0))
    deck.data.bert.mask_probability = 0.15;
}

void derive_max_ngram(Deck& deck) {
  deck.data.bert.max_ngram.reset();
  if (is_bert(deck, BertDialect::megatron)) deck.data.bert.max_ngram = 3;
}

void derive_short_sequence(Deck& deck) {
  deck.data.bert.short_sequence.reset();
  if (is_bert(deck, BertDialect::megatron)) deck.data.bert.short_sequence = 0.1;
  if (is_bert(deck, BertDialect::v0)) deck.data.bert.short_sequence = 0.01;
}

void derive_sentence_task(Deck& deck) {
  std::optional<SentenceTask>& task = deck.data.bert.sentence_task;
  task.reset();
  if (!is_bert(deck)) return;
  task = !deck.model.bert.binary_head.value_or(true) ? SentenceTask::none
         : is_bert(deck, BertDialect::megatron)      ? SentenceTask::order
                                                     : SentenceTask::next;
}

}  // namespace

void bert_model_keys(std::vector<Key>& rows) {
  rows.insert(rows.end(),
              {
                  key(TRIREME_MEMBER(model.bert.binary_head))
                      .derived("true for bert", for_bert(&BertModel::binary_head, true))
                      .immutable()
                      .only(Family::bert)
                      .help("BERT: the head that classifies sentence pairs."),
                  key(TRIREME_MEMBER(model.bert.post_norm))
                      .derived("false for bert", for_bert(&BertModel::post_norm, false))
                      .immutable()
                      .only(Family::bert)
                      .help("BERT: layer norms after the residual sums, as in Devlin et al.; "
                            "false: before the sublayers, as in Megatron-LM."),
                  key(TRIREME_MEMBER(model.bert.deep_init))
                      .derived("false for bert", for_bert(&BertModel::deep_init, false))
                      .warn()
                      .only(Family::bert)
                      .help("BERT: initial weights of the output projections divided by sqrt(2 "
                            "layers)."),
              });
}

void bert_data_keys(std::vector<Key>& rows) {
  rows.insert(
      rows.end(),
      {
          key(TRIREME_MEMBER(data.bert.dialect))
              .derived("megatron for bert", derive_dialect)
              .immutable()
              .only(Family::bert)
              .help(
                  "BERT: how samples are made: megatron: Megatron-LM's sentence pairs; v0: its "
                  "first release's; tfrecord: data.train names files of create_pretraining_data."),
          key(TRIREME_MEMBER(data.bert.mask_probability))
              .derived("0.15", derive_mask_probability)
              .above(0)
              .below(1)
              .immutable()
              .only(Family::bert)
              .help("BERT: share of tokens that are predicted (megatron, v0)."),
          key(TRIREME_MEMBER(data.bert.max_predictions))
              .derived("v0: mask_probability * sequence, rounded up to a multiple of 10", {})
              .at_least(1)
              .immutable()
              .only(Family::bert)
              .help("BERT: maximum of predicted tokens in a sample; tfrecord: the number in each "
                    "example."),
          key(TRIREME_MEMBER(data.bert.max_ngram))
              .derived("3", derive_max_ngram)
              .from(1, 7)
              .immutable()
              .only(Family::bert)
              .help("BERT: maximum of words that are masked together (megatron)."),
          key(TRIREME_MEMBER(data.bert.short_sequence))
              .derived("0.1; 0.01 for v0", derive_short_sequence)
              .from(0, 1)
              .immutable()
              .only(Family::bert)
              .help("BERT: share of samples with a random, shorter length (megatron, v0)."),
          key(TRIREME_MEMBER(data.bert.sentence_task))
              .derived("order; next for v0 and tfrecord; none without model.bert.binary_head",
                       derive_sentence_task)
              .immutable()
              .only(Family::bert)
              .help("BERT: what the sentence label says: the second segment is swapped with the "
                    "first (order), is of another document (next), or there is none."),
      });
}

// The keys that only model.family = llama has. Their members are unset for another family.

namespace {

bool is_llama(const Deck& deck) { return deck.model.family == Family::llama; }

/// Sets a member of the model to `value` for llama.
template <typename T>
std::function<void(Deck&)> for_llama(std::optional<T> Model::*member, T value) {
  return [=](Deck& deck) {
    deck.model.*member = is_llama(deck) ? std::optional(value) : std::nullopt;
  };
}

void derive_kv_heads(Deck& deck) {
  deck.model.kv_heads.reset();
  if (is_llama(deck)) deck.model.kv_heads = deck.model.heads;
}

void derive_head_dim(Deck& deck) {
  deck.model.head_dim.reset();
  if (is_llama(deck) && deck.model.heads > 0)
    deck.model.head_dim = deck.model.hidden / deck.model.heads;
}

// The row of `scaling` comes first: the defaults of the others depend on it.

void derive_theta(Deck& deck) {
  deck.model.position.theta.reset();
  if (is_llama(deck)) deck.model.position.theta = 10000.0;
}

void derive_scaling(Deck& deck) {
  deck.model.position.scaling.reset();
  if (is_llama(deck)) deck.model.position.scaling = PositionScaling::none;
}

bool by_wavelength(const Deck& deck) {
  const auto& scaling = deck.model.position.scaling;
  return scaling == PositionScaling::llama3 || scaling == PositionScaling::yarn;
}

void derive_low(Deck& deck) {
  deck.model.position.low.reset();
  if (by_wavelength(deck)) deck.model.position.low = 1.0;
}

void derive_high(Deck& deck) {
  deck.model.position.high.reset();
  if (by_wavelength(deck))
    deck.model.position.high = deck.model.position.scaling == PositionScaling::llama3 ? 4.0 : 32.0;
}

}  // namespace

void llama_keys(std::vector<Key>& rows) {
  rows.insert(
      rows.end(),
      {
          key(TRIREME_MEMBER(model.kv_heads))
              .derived("model.heads", derive_kv_heads)
              .from(1, kMaxWidth)
              .immutable()
              .only(Family::llama)
              .help("Llama: key and value heads; divides model.heads."),
          key(TRIREME_MEMBER(model.head_dim))
              .derived("model.hidden / model.heads", derive_head_dim)
              .from(2, kMaxWidth)
              .immutable()
              .only(Family::llama)
              .help("Llama: elements of a head, an even number."),
          key(TRIREME_MEMBER(model.activation))
              .derived("swiglu for llama", for_llama(&Model::activation, GatedActivation::swiglu))
              .immutable()
              .only(Family::llama)
              .help("Llama: the gate of the MLP, SiLU or GELU (tanh)."),
          key(TRIREME_MEMBER(model.norm_placement))
              .derived("pre for llama", for_llama(&Model::norm_placement, NormPlacement::pre))
              .words({name_of(NormPlacement::pre), name_of(NormPlacement::output)})
              .immutable()
              .only(Family::llama)
              .help("Llama: RMS norms of each sublayer's input (pre), or of its output before the "
                    "residual sum (output: OLMo-2)."),
          key(TRIREME_MEMBER(model.qk_norm))
              .derived("none for llama", for_llama(&Model::qk_norm, QkNorm::none))
              .immutable()
              .only(Family::llama)
              .help("Llama: RMS norms of queries and keys, of each head (head: Qwen3) or of all "
                    "heads together (width: OLMo-2)."),
          key(TRIREME_MEMBER(model.bias))
              .derived("none for llama", for_llama(&Model::bias, LinearBias::none))
              .immutable()
              .only(Family::llama)
              .help("Llama: linears with a bias: none, or queries, keys and values (qkv: "
                    "Qwen2.5)."),
          key(TRIREME_MEMBER(model.window))
              .from(1, kMaxSequence)
              .unit("tokens")
              .immutable()
              .only(Family::llama)
              .help("Llama: a token attends to so many, itself included (sliding window: Mistral); "
                    "unset: to all earlier ones."),
          key(TRIREME_MEMBER(model.position.theta))
              .derived("10000 for llama", derive_theta)
              .above(1)
              .immutable()
              .only(Family::llama)
              .help("Llama: base of the rotary positions' wavelengths."),
          key(TRIREME_MEMBER(model.position.scaling))
              .derived("none for llama", derive_scaling)
              .immutable()
              .only(Family::llama)
              .help("Llama: how rotary positions are stretched to a longer context: linear; "
                    "llama3: by wavelength, as in Llama 3.1; yarn."),
          key(TRIREME_MEMBER(model.position.factor))
              .derived("needed with model.position.scaling", {})
              .from(1, 1e6)
              .immutable()
              .only(Family::llama)
              .help("Llama: by how much the context is longer."),
          key(TRIREME_MEMBER(model.position.original))
              .derived("needed with model.position.scaling: llama3 or yarn", {})
              .from(1, kMaxSequence)
              .unit("tokens")
              .immutable()
              .only(Family::llama)
              .help("Llama: the context before it was made longer."),
          key(TRIREME_MEMBER(model.position.low))
              .derived("1 with model.position.scaling: llama3 or yarn", derive_low)
              .above(0)
              .immutable()
              .only(Family::llama)
              .help("Llama: pairs that turn less often in the original context are slowed down by "
                    "the whole factor (low_freq_factor, beta_slow)."),
          key(TRIREME_MEMBER(model.position.high))
              .derived("4 with model.position.scaling: llama3, 32 with yarn", derive_high)
              .above(0)
              .immutable()
              .only(Family::llama)
              .help("Llama: pairs that turn more often in the original context keep their speed "
                    "(high_freq_factor, beta_fast)."),
      });
}

}  // namespace trireme::deck
