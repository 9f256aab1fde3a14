// The keys of Llama, and what Llama has no use for.
#include <fmt/format.h>

#include <string>
#include <string_view>

#include "deck/checks/checks.hpp"
#include "deck/keys/schema.hpp"

namespace trireme::deck {

void Checker::llama() {
  const Model& model = deck_.model;
  if (model.family != Family::llama) {
    require(model.tie_embeddings, {"model.tie_embeddings", "model.family"}, [&] {
      return fmt::format(
          "model.tie_embeddings = false is not built for model.family = {} (try true)",
          name_of(model.family));
    });
    return;
  }
  require(
      !model.embedding_layernorm, {"model.embedding_layernorm", "model.family"},
      [] { return "model.embedding_layernorm = true is for model.family = gpt; leave it out"; },
      Suggestion::leave_out_first);
  const std::int64_t kv_heads = model.kv_heads.value_or(0), heads = model.heads;
  require(kv_heads == 0 || heads % kv_heads == 0, {"model.kv_heads", "model.heads"}, [&] {
    return fmt::format("model.kv_heads = {} does not divide model.heads = {} (try {})", kv_heads,
                       heads, divisor_list(heads, kv_heads));
  });
  require(!model.head_dim || *model.head_dim % 2 == 0, {"model.head_dim", "model.heads"}, [&] {
    return fmt::format(
        "model.head_dim = {} is odd, but rotary positions turn pairs of elements (try {})",
        *model.head_dim, *model.head_dim + 1);
  });
  const std::int64_t tensor = deck_.parallel.tensor;
  require(kv_heads == 0 || tensor <= 0 || heads % tensor != 0 || kv_heads % tensor == 0 ||
              tensor % kv_heads == 0,
          {"parallel.tensor", "model.kv_heads"}, [&] {
            return fmt::format(
                "parallel.tensor = {} neither divides model.kv_heads = {} nor is a multiple of it "
                "(try {})",
                tensor, kv_heads, divisor_list(kv_heads, tensor));
          });
  const bool output = model.norm_placement == NormPlacement::output;
  require(!output || model.dropout.hidden == 0, {"model.dropout.hidden", "model.norm_placement"},
          [&] {
            return fmt::format(
                "model.dropout.hidden = {} is not built with model.norm_placement = output (try 0)",
                model.dropout.hidden);
          });
  require(!output || deck_.recompute.granularity != Granularity::selective,
          {"recompute.granularity", "model.norm_placement"}, [] {
            return "recompute.granularity = selective recomputes norms before the sublayers, but "
                   "model.norm_placement = output has them after (try recompute.granularity: full, "
                   "or none)";
          });
  position();
}

void Checker::position() {
  const Position& position = deck_.model.position;
  if (!position.scaling) return;  // a bad value has been reported
  const PositionScaling scaling = *position.scaling;
  const bool scales = scaling != PositionScaling::none;
  const bool by_wavelength = scales && scaling != PositionScaling::linear;
  struct Rule {
    std::string_view path;
    bool given, used;
  };
  const Rule rules[] = {{"model.position.factor", position.factor.has_value(), scales},
                        {"model.position.original", position.original.has_value(), by_wavelength},
                        {"model.position.low", position.low.has_value(), by_wavelength},
                        {"model.position.high", position.high.has_value(), by_wavelength}};
  for (const auto& [path, given, used] : rules) {
    require(given || !used, {path, "model.position.scaling"}, [&, path = path] {
      return fmt::format("model.position.scaling = {} needs '{}'", name_of(scaling), path);
    });
    require(
        !given || used, {path, "model.position.scaling"},
        [&, path = path] {
          return fmt::format("'{}' has no effect with model.position.scaling = {}; leave it out",
                             path, name_of(scaling));
        },
        Suggestion::leave_out_first);
  }
  require(!position.low || !position.high || *position.low < *position.high,
          {"model.position.low", "model.position.high"}, [&] {
            return fmt::format(
                "model.position.low = {} is not below model.position.high = {} (try {})",
                *position.low, *position.high, *position.high / 4);
          });
}

}  // namespace trireme::deck
