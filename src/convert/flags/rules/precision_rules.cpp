// Types of numbers and loss scaling.
#include <fmt/format.h>

#include <cmath>

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

/// A part of the loss scale: the flag or JSON key `name`, else `fallback`.
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
  for (const std::string_view name : {"loss-scale", "initial-loss-scale", "loss-scale-window",
                                      "hysteresis", "min-loss-scale", "min-scale"})
    if (const Given* given = recipe.flags.find(name))
      draft.leave_out(*given, "DeepSpeed takes the loss scale from its JSON file");
  draft.set("precision.loss_scale.dialect", "deepspeed", std::string("--deepspeed"));
  const Given* scale = recipe.json.find("fp16.loss_scale");
  if (scale && std::strtod(scale->values[0].c_str(), nullptr) != 0) {
    recipe.copy(*scale, "precision.loss_scale.value");
    return;
  }
  if (scale)
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
  // Before 2.0 the scaler was Apex's, which DeepSpeed's is as well.
  const bool old = recipe.before_version_2();
  draft.set(
      "precision.loss_scale.dialect", old ? "deepspeed" : "megatron",
      std::string(old ? "the scaler of Megatron-LM before 2.0" : "the scaler of Megatron-LM"));
  if (const Given* scale = recipe.flags.find("loss-scale"); scale && scale->values[0] != "0") {
    recipe.copy(*scale, "precision.loss_scale.value");
    return;
  }
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
  if (type == "fp16" && recipe.deepspeed && recipe.json.has("fp16.enabled"))
    set_deepspeed_scale(recipe);
  else if (type == "fp16")
    set_megatron_scale(recipe);
  else
    for (const std::string_view name : {"loss-scale", "initial-loss-scale", "loss-scale-window",
                                        "hysteresis", "min-loss-scale", "min-scale"})
      if (const Given* given = recipe.flags.find(name))
        recipe.draft.leave_out(*given, fmt::format("{} needs no loss scale", type));
}

}  // namespace trireme::convert::flags
