// Precision and loss scaling.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <span>
#include <string_view>

#include "convert/flags/recipe.hpp"

namespace trireme::convert::flags {
namespace {

bool is_true(const Given* given) { return given && given->values[0] == "true"; }

/// The compute type and its origin; the JSON file decides if DeepSpeed runs.
std::string compute_type(Recipe& recipe) {
  Draft& draft = recipe.draft;
  const Given* half = recipe.flags.find("fp16");
  const Given* brain = recipe.flags.find("bf16");
  if (half && brain) draft.error(*brain, "'--fp16' asks for another type; keep one of the two");
  const std::string command = brain ? "bf16" : half ? "fp16" : "fp32";
  const Given* source = brain ? brain : half;

  const Given* json_half = recipe.json.find("fp16.enabled");
  const Given* json_brain = recipe.json.find("bf16.enabled");
  if (!json_brain) json_brain = recipe.json.find("bfloat16.enabled");
  std::string type = command;
  if (recipe.deepspeed && (json_half || json_brain)) {
    type = is_true(json_brain) ? "bf16" : is_true(json_half) ? "fp16" : "fp32";
    const Given* file = is_true(json_brain) || !json_half ? json_brain : json_half;
    if (type != command)
      draft.note(recipe.place,
                 fmt::format("the command line says {}, {} {} says {}: DeepSpeed reads the type "
                             "from its JSON file",
                             command, file->place, file->text(), type));
    source = file;
  }
  if (source)
    draft.set("precision.compute", type, *source);
  else
    draft.set("precision.compute", type, kMegatronDefault);
  return type;
}

using Names = std::span<const std::string_view>;

/// The flags and the JSON keys of the loss scale; the first is its value.
constexpr std::string_view kFlags[] = {"loss-scale", "initial-loss-scale", "loss-scale-window",
                                       "hysteresis", "min-loss-scale",     "min-scale"};
constexpr std::string_view kJsonKeys[] = {"fp16.loss_scale", "fp16.initial_scale_power",
                                          "fp16.loss_scale_window", "fp16.hysteresis",
                                          "fp16.min_loss_scale"};

void leave_out(Recipe& recipe, const Arguments& from, Names names, const std::string& reason) {
  for (const std::string_view name : names)
    if (const Given* given = from.find(name)) recipe.draft.leave_out(*given, reason);
}

/// Sets a static scale if `from` gives one for the first of `names`; the others then have no
/// effect.
bool set_static_scale(Recipe& recipe, const Arguments& from, Names names) {
  const Given* scale = from.find(names[0]);
  // 0 means dynamic.
  if (!scale || std::strtod(scale->values[0].c_str(), nullptr) == 0) return false;
  recipe.copy(*scale, "precision.loss_scale.value");
  leave_out(recipe, from, names.subspan(1), scale->text() + " is static");
  return true;
}

/// A parameter of a dynamic loss scale: the flag or JSON key `name`, else `fallback`.
void set_part(Recipe& recipe, const Arguments& from, std::string_view name, std::string_view part,
              std::string_view fallback, const char* place) {
  const std::string key = fmt::format("precision.loss_scale.{}", part);
  if (const Given* given = from.find(name))
    recipe.copy(*given, key);
  else
    recipe.draft.set(key, std::string(fallback), std::string(place));
}

void set_deepspeed_scale(Recipe& recipe) {
  Draft& draft = recipe.draft;
  constexpr const char* kDefault = "the default of DeepSpeed";
  leave_out(recipe, recipe.flags, kFlags, "DeepSpeed reads the loss scale from its JSON file");
  if (set_static_scale(recipe, recipe.json, kJsonKeys)) return;
  draft.set("precision.loss_scale.dialect", "deepspeed", std::string("--deepspeed"));
  if (const Given* scale = recipe.json.find("fp16.loss_scale"))
    draft.set("precision.loss_scale.value", "dynamic", *scale);
  else
    draft.set("precision.loss_scale.value", "dynamic", std::string(kDefault));
  const Given* power = recipe.json.find("fp16.initial_scale_power");
  const double initial = std::ldexp(1.0, static_cast<int>(recipe.whole(power).value_or(16)));
  if (power)
    draft.set("precision.loss_scale.initial", fmt::format("{}", initial), *power);
  else
    draft.set("precision.loss_scale.initial", fmt::format("{}", initial), std::string(kDefault));
  set_part(recipe, recipe.json, "fp16.loss_scale_window", "window", "1000", kDefault);
  set_part(recipe, recipe.json, "fp16.hysteresis", "hysteresis", "2", kDefault);
  set_part(recipe, recipe.json, "fp16.min_loss_scale", "minimum", "1", kDefault);
}

void set_megatron_scale(Recipe& recipe) {
  Draft& draft = recipe.draft;
  if (set_static_scale(recipe, recipe.flags, kFlags)) return;
  // Also before 2.0: at the minimum scale Megatron-LM continues, while DeepSpeed stops the run.
  draft.set("precision.loss_scale.dialect", "megatron", std::string("the scaler of Megatron-LM"));
  draft.set("precision.loss_scale.value", "dynamic", kMegatronDefault);
  const Arguments& flags = recipe.flags;
  set_part(recipe, flags, "initial-loss-scale", "initial", "4294967296", kMegatronDefault);
  set_part(recipe, flags, "loss-scale-window", "window", "1000", kMegatronDefault);
  set_part(recipe, flags, "hysteresis", "hysteresis", "2", kMegatronDefault);
  const bool short_name = flags.has("min-scale");
  set_part(recipe, flags, short_name ? "min-scale" : "min-loss-scale", "minimum", "1",
           kMegatronDefault);
}

/// FP8 of Transformer Engine: the layers' GEMMs, of which the first and last may stay in 16 bits.
void apply_fp8(Recipe& recipe) {
  Draft& draft = recipe.draft;
  const Given* format = recipe.flags.find("fp8-format");
  const Given* hybrid = recipe.flags.find("fp8-hybrid");
  const Given* e4m3 = recipe.flags.find("fp8-e4m3");
  const Given* given = format ? format : hybrid ? hybrid : e4m3;
  const std::string name = format ? format->values[0] : hybrid ? "hybrid" : "e4m3";
  if (!given) {
    for (const std::string_view flag : {"fp8-recipe", "first-last-layers-bf16",
                                        "num-layers-at-start-in-bf16", "num-layers-at-end-in-bf16"})
      if (const Given* unused = recipe.flags.find(flag))
        draft.leave_out(*unused, "has no effect without --fp8-format");
    return;
  }
  if (name != "hybrid" && name != "e4m3") return draft.error(*given, "expected hybrid or e4m3");
  draft.set("precision.gemm", "fp8", *given);
  draft.set("precision.fp8.backward", name == "hybrid" ? "e5m2" : "e4m3", *given);

  const Given* scaling = recipe.flags.find("fp8-recipe");
  const std::string kind = scaling ? scaling->values[0] : "delayed";
  if (kind == "tensorwise")
    draft.set("precision.fp8.recipe", "tensor", *scaling);
  else if (kind == "blockwise")
    draft.set("precision.fp8.recipe", "block", *scaling);
  else if (kind == "delayed")
    draft.note((scaling ? scaling : given)->place,
               "FP8 scales come from each tensor's current magnitude, not from past ones (delayed "
               "scaling): losses differ by rounding");
  else
    draft.error(*scaling, "Trireme has the recipes tensorwise and blockwise");

  // Megatron-LM's defaults are one layer at each end.
  const Given* ends = recipe.flags.find("first-last-layers-bf16");
  for (const auto& [flag, key] :
       {std::pair{"num-layers-at-start-in-bf16", "precision.fp8.first_layers"},
        std::pair{"num-layers-at-end-in-bf16", "precision.fp8.last_layers"}}) {
    const Given* layers = recipe.flags.find(flag);
    if (layers && !ends)
      draft.leave_out(*layers, "has no effect without --first-last-layers-bf16");
    else if (layers)
      recipe.copy(*layers, key);
    else if (ends)
      draft.set(key, "1", *ends);
  }
}

/// Lookups in fp32, which ZeRO leaves no whole master weights for.
void apply_embedding(Recipe& recipe, const std::string& type) {
  Draft& draft = recipe.draft;
  for (const std::string_view flag : {"fp32-tokentypes", "fp32-embedding"}) {
    const Given* given = recipe.flags.find(flag);
    if (!given) continue;
    const std::string stage = draft.value("parallel.zero");
    if (type == "fp32" || stage == "0") {
      draft.set("precision.embedding", "fp32", *given);
      continue;
    }
    const std::string reason = fmt::format(
        "embeddings are looked up in {}: parallel.zero = {} shards the fp32 weights", type, stage);
    draft.leave_out(*given, reason);
    draft.note(given->place,
               fmt::format("{}: {}; losses differ by rounding", given->text(), reason));
  }
}

}  // namespace

void apply_precision_rules(Recipe& recipe) {
  apply_fp8(recipe);
  const std::string type = compute_type(recipe);
  apply_embedding(recipe, type);
  const std::string needs_none = fmt::format("{} uses no loss scale", type);
  const bool in_file = recipe.deepspeed &&
                       (recipe.json.has("fp16.enabled") ||
                        std::any_of(std::begin(kJsonKeys), std::end(kJsonKeys),
                                    [&](std::string_view name) { return recipe.json.has(name); }));
  if (type != "fp16")
    leave_out(recipe, recipe.flags, kFlags, needs_none);
  else if (in_file)
    set_deepspeed_scale(recipe);
  else
    set_megatron_scale(recipe);
  if (type != "fp16" && recipe.deepspeed) leave_out(recipe, recipe.json, kJsonKeys, needs_none);
}

}  // namespace trireme::convert::flags
