// Types of numbers and loss scaling.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <span>
#include <string_view>

#include "convert/flags/rules/rules.hpp"

namespace trireme::convert::flags {
namespace {

bool is_true(const Given* given) { return given && given->values[0] == "true"; }

/// The type of numbers, and who says it. The JSON file rules where DeepSpeed does.
std::string compute_type(Recipe& recipe) {
  Draft& draft = recipe.draft;
  const Given* half = recipe.flags.find("fp16");
  const Given* brain = recipe.flags.find("bf16");
  if (half && brain) draft.error(*brain, "'--fp16' says another type; keep one");
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
                 fmt::format("the command line says {}, {} {} says {}: DeepSpeed takes the type "
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

/// The flags and the JSON keys of the loss scale; the first of each is its value.
constexpr std::string_view kFlags[] = {"loss-scale", "initial-loss-scale", "loss-scale-window",
                                       "hysteresis", "min-loss-scale",     "min-scale"};
constexpr std::string_view kJsonKeys[] = {"fp16.loss_scale", "fp16.initial_scale_power",
                                          "fp16.loss_scale_window", "fp16.hysteresis",
                                          "fp16.min_loss_scale"};

void leave_out(Recipe& recipe, const Arguments& from, Names names, const std::string& reason) {
  for (const std::string_view name : names)
    if (const Given* given = from.find(name)) recipe.draft.leave_out(*given, reason);
}

/// Sets a scale that stays as it is, where `from` gives one for the first of `names`; the others
/// then have nothing to say.
bool set_static_scale(Recipe& recipe, const Arguments& from, Names names) {
  const Given* scale = from.find(names[0]);
  // 0 is the word for a dynamic one.
  if (!scale || std::strtod(scale->values[0].c_str(), nullptr) == 0) return false;
  recipe.copy(*scale, "precision.loss_scale.value");
  leave_out(recipe, from, names.subspan(1), scale->text() + " stays as it is");
  return true;
}

/// A part of a dynamic loss scale: the flag or JSON key `name`, else `fallback`.
void set_part(Recipe& recipe, const Arguments& from, std::string_view name, std::string_view part,
              std::string_view fallback, const char* who) {
  const std::string key = fmt::format("precision.loss_scale.{}", part);
  if (const Given* given = from.find(name))
    recipe.copy(*given, key);
  else
    recipe.draft.set(key, std::string(fallback), std::string(who));
}

void set_deepspeed_scale(Recipe& recipe) {
  Draft& draft = recipe.draft;
  constexpr const char* kDefault = "the default of DeepSpeed";
  leave_out(recipe, recipe.flags, kFlags, "DeepSpeed takes the loss scale from its JSON file");
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
  // Before 2.0 as well: at the minimum scale Megatron-LM continues, where DeepSpeed ends the run.
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

}  // namespace

void apply_precision_rules(Recipe& recipe) {
  const std::string type = compute_type(recipe);
  const std::string needs_none = fmt::format("{} needs no loss scale", type);
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
