// The keys that only model.family = llama has. Their members are unset for another family.
#include "deck/keys/row.hpp"

namespace trireme::deck {
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
