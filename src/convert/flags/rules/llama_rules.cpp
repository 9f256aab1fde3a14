// Networks of Llama's kind, as Megatron-Core's flags describe them: RMS norms, rotary positions,
// gated MLPs, linears without biases.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <string>
#include <string_view>
#include <vector>

#include "convert/flags/recipe.hpp"

namespace trireme::convert::flags {
namespace {

/// A property that Llama has and GPT-2 has not, the flag that gives it, and how to write it.
struct Property {
  const Given* given;
  std::string_view flag;
};

/// The flag `name` if it has the value `value`.
const Given* with_value(const Recipe& recipe, std::string_view name, std::string_view value) {
  const Given* given = recipe.flags.find(name);
  return given && given->values[0] == value ? given : nullptr;
}

std::vector<Property> properties_of(const Recipe& recipe) {
  const Given* rotary = with_value(recipe, "position-embedding-type", "rope");
  if (!rotary) rotary = recipe.flags.find("use-rotary-position-embeddings");
  return {{with_value(recipe, "normalization", "RMSNorm"), "--normalization RMSNorm"},
          {rotary, "--position-embedding-type rope"},
          {recipe.flags.find("swiglu"), "--swiglu"},
          {recipe.flags.find("disable-bias-linear"), "--disable-bias-linear"}};
}

/// Whether the network is of Llama's kind. A mixture of both kinds is an error.
bool is_llama(Recipe& recipe) {
  const Given* first = nullptr;
  std::vector<std::string_view> missing;
  for (const Property& property : properties_of(recipe)) {
    if (!property.given) missing.push_back(property.flag);
    if (!first) first = property.given;
  }
  for (const std::string_view name :
       {"group-query-attention", "qk-layernorm", "add-qkv-bias", "window-size"})
    if (!first) first = recipe.flags.find(name);
  if (!first) return false;
  if (!missing.empty())
    recipe.draft.error(
        *first, fmt::format("Trireme has GPT-2's network (learned positions, LayerNorm, GELU, "
                            "biases) and Llama's, for which the recipe lacks {}",
                            fmt::join(missing, ", ")));
  if (recipe.program.find("bert") != std::string::npos)
    recipe.draft.error(*first, "is for pretrain_gpt.py: BERT has GPT-2's layers");
  return true;
}

/// A head's elements, where they are not hidden / heads; the width of the MLP, the dropout and the
/// number of key-value heads, whose defaults are Megatron-LM's.
void apply_shape(Recipe& recipe) {
  Draft& draft = recipe.draft;
  const std::int64_t hidden = recipe.whole("hidden-size").value_or(0);
  const std::int64_t heads = recipe.whole("num-attention-heads").value_or(0);
  if (const Given* channels = recipe.flags.find("kv-channels")) {
    if (recipe.whole(channels).value_or(0) * heads == hidden)
      draft.leave_out(*channels, "is hidden / heads");
    else
      recipe.copy(*channels, "model.head_dim");
  }
  if (!draft.has("model.ffn") && hidden > 0)
    draft.set("model.ffn", fmt::format("{}", 8 * hidden / 3 / 64 * 64), kMegatronDefault);
  for (const char* key : {"model.dropout.attention", "model.dropout.hidden"})
    if (!draft.has(key)) draft.set(key, "0.1", kMegatronDefault);
  const Given* groups = recipe.flags.find("num-query-groups");
  if (recipe.flags.has("group-query-attention"))
    recipe.copy_or("num-query-groups", "model.kv_heads", "1");
  else if (groups)
    draft.leave_out(*groups, "has no effect without --group-query-attention");
  if (const Given* given = recipe.flags.find("qk-layernorm"))
    draft.set("model.qk_norm", "head", *given);
  if (const Given* given = recipe.flags.find("add-qkv-bias"))
    draft.set("model.bias", "qkv", *given);
}

/// The two whole numbers of "128,0", "(128, 0)" or "128 0"; empty for another text.
std::vector<std::int64_t> numbers_of(const Given& given) {
  std::string text = fmt::format("{}", fmt::join(given.values, ","));
  std::erase_if(text, [](char c) { return c == '(' || c == ')' || c == ' '; });
  std::vector<std::int64_t> numbers;
  for (const char *at = text.data(), *end = at + text.size(); at < end;) {
    std::int64_t number = 0;
    const auto [next, error] = std::from_chars(at, end, number);
    if (error != std::errc() || (next < end && *next != ',')) return {};
    numbers.push_back(number);
    at = next + 1;
  }
  return numbers;
}

/// Transformer Engine's window: tokens before and after a token, which is not counted; -1: all.
void apply_window(Recipe& recipe) {
  const Given* given = recipe.flags.find("window-size");
  if (!given) return;
  const std::vector<std::int64_t> sides = numbers_of(*given);
  if (sides.size() != 2 || sides[0] < -1 || sides[1] > 0)
    recipe.draft.error(*given, "expected the tokens before and after a token, such as 127,0");
  else if (sides[0] == -1)
    recipe.draft.leave_out(*given, "attention to all earlier tokens is the default");
  else
    recipe.draft.set("model.window", fmt::format("{}", sides[0] + 1), *given);
  allow_only(recipe, "window-attn-skip-freq", {"0", "1"}, "all layers have the window");
}

void apply_positions(Recipe& recipe) {
  Draft& draft = recipe.draft;
  recipe.copy_or("rotary-base", "model.position.theta", "10000");
  allow_only(recipe, "rotary-percent", {"1", "1.0"}, "Trireme rotates whole heads");
  allow_only(recipe, "rope-type", {"rope"}, "give model.position.scaling: yarn in the deck");
  if (const Given* given = recipe.flags.find("rotary-interleaved"))
    draft.error(*given, "rotary pairs are the two halves of a head; remove it");
  const Given* linear = recipe.flags.find("rotary-seq-len-interpolation-factor");
  const Given* llama3 = recipe.flags.find("use-rope-scaling");
  const Given* factor = recipe.flags.find("rope-scaling-factor");
  if (linear && linear->values[0] == "1") {
    draft.leave_out(*linear, "positions keep their scale");
    linear = nullptr;
  }
  if (linear && llama3)
    return draft.error(
        *llama3, fmt::format("'{}' also scales positions; keep one of the two", linear->text()));
  if (linear) {
    draft.set("model.position.scaling", "linear", *linear);
    recipe.copy(*linear, "model.position.factor");
  }
  if (llama3) {
    draft.set("model.position.scaling", "llama3", *llama3);
    recipe.copy_or("rope-scaling-factor", "model.position.factor", "8");
    // The constants of Megatron-Core's rotary_pos_embedding.py.
    draft.set("model.position.original", "8192", *llama3);
  } else if (factor) {
    draft.leave_out(*factor, "has no effect without --use-rope-scaling");
  }
}

}  // namespace

bool apply_llama_rules(Recipe& recipe) {
  const bool llama = is_llama(recipe);
  if (!with_value(recipe, "position-embedding-type", "rope"))
    allow_only(recipe, "position-embedding-type", {"absolute", "learned_absolute"},
               "Trireme has learned_absolute and rope");
  if (!with_value(recipe, "normalization", "RMSNorm"))
    allow_only(recipe, "normalization", {"LayerNorm"}, "Trireme has LayerNorm and RMSNorm");
  allow_only(recipe, "softmax-type", {"vanilla"}, "Trireme's attention has no sink; remove it");
  allow_only(recipe, "glu-linear-offset", {"0", "0.0"},
             "Trireme's gates have no offset; remove it");
  if (llama) {
    recipe.draft.set("model.family", "llama",
                     std::string("RMS norms, rotary positions, a gated MLP, no biases"));
    recipe.draft.set("model.activation", "swiglu", std::string("--swiglu"));
    apply_shape(recipe);
    apply_window(recipe);
    apply_positions(recipe);
    return true;
  }
  for (const std::string_view name :
       {"rotary-percent", "rotary-base", "rotary-interleaved", "rope-type", "use-rope-scaling",
        "rotary-seq-len-interpolation-factor", "rope-scaling-factor"})
    if (const Given* given = recipe.flags.find(name))
      recipe.draft.leave_out(*given, "has no effect without rotary positions");
  if (const Given* given = recipe.flags.find("num-query-groups"))
    recipe.draft.leave_out(*given, "has no effect without --group-query-attention");
  if (const Given* given = recipe.flags.find("window-attn-skip-freq"))
    recipe.draft.leave_out(*given, "has no effect without --window-size");
  return false;
}

}  // namespace trireme::convert::flags
