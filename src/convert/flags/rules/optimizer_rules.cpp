// Optimizer, learning-rate schedule, precision and loss scaling.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <span>
#include <string_view>
#include <vector>

#include "convert/flags/recipe.hpp"

namespace trireme::convert::flags {
namespace {

/// The one of `names` that is given; an error if several are.
const Given* only_one(Recipe& recipe, std::initializer_list<std::string_view> names) {
  const Given* found = nullptr;
  for (const std::string_view name : names) {
    const Given* given = recipe.flags.find(name);
    // 0 means "not given" to Megatron.
    if (!given || (name.starts_with("lr-warmup-") && given->values[0] == "0")) continue;
    if (found)
      recipe.draft.error(
          *given, fmt::format("'{}' sets the same length; keep one of the two", found->text()));
    else
      found = given;
  }
  return found;
}

/// Sets a length in the unit of the flag's name.
void set_length(Recipe& recipe, const Given& given, std::string_view key) {
  const bool samples = given.flag->name.ends_with("samples");
  const bool run_counts_samples = recipe.flags.mentions("train-samples");
  const bool run_counts = run_counts_samples || recipe.flags.mentions("train-iters");
  if (run_counts && samples != run_counts_samples)
    recipe.draft.error(given, fmt::format("counts {}, but '{}' counts {}; Megatron-LM refuses the "
                                          "two together",
                                          samples ? "samples" : "iterations",
                                          run_counts_samples ? "--train-samples" : "--train-iters",
                                          run_counts_samples ? "samples" : "iterations"));
  recipe.copy(given, key, samples ? "samples" : "iterations");
}

void apply_warmup(Recipe& recipe) {
  const Given* given =
      only_one(recipe, {"lr-warmup-fraction", "lr-warmup-iters", "lr-warmup-samples", "warmup"});
  if (!given) {
    // Before 2.0 warm-up was on by default.
    if (recipe.before_version_2()) recipe.draft.set("schedule.warmup", "0.01", kMegatronDefault);
  } else if (given->flag->name == "warmup" || given->flag->name == "lr-warmup-fraction") {
    const bool none = std::strtod(given->values[0].c_str(), nullptr) == 0;
    recipe.draft.set("schedule.warmup", none ? "0 iterations" : as_number(given->values[0]),
                     *given);
  } else {
    set_length(recipe, *given, "schedule.warmup");
  }
  if (const Given* first = recipe.flags.find("lr-warmup-init")) {
    if (std::strtod(first->values[0].c_str(), nullptr) != 0)
      recipe.draft.error(*first, "Trireme's warm-up starts at 0; remove it");
    else
      recipe.draft.leave_out(*first, "Trireme's warm-up starts at 0");
  }
}

/// DeepSpeed's own schedule, which overrides the program's; true if there is one.
bool apply_deepspeed_schedule(Recipe& recipe) {
  const Given* type = recipe.deepspeed ? recipe.json.find("scheduler.type") : nullptr;
  if (!type) return false;
  Draft& draft = recipe.draft;
  if (type->values[0] != "LRRangeTest") {
    draft.error(*type,
                "only LRRangeTest has a deck key; remove the scheduler from the file, so that "
                "the command line's flags apply");
    return true;
  }
  draft.set("schedule.type", "lr-range-test", *type);
  struct Part {
    std::string_view name, key, fallback;
  };
  constexpr Part kParts[] = {
      {"scheduler.params.lr_range_test_min_lr", "schedule.minimum", "0.001"},
      {"scheduler.params.lr_range_test_step_size", "schedule.range_test.step", "2000"},
      {"scheduler.params.lr_range_test_step_rate", "schedule.range_test.rate", "1"},
      {"scheduler.params.lr_range_test_staircase", "schedule.range_test.staircase", "false"}};
  for (const auto& [name, key, fallback] : kParts) {
    if (const Given* given = recipe.json.find(name))
      recipe.copy(*given, key);
    else
      draft.set(key, std::string(fallback), std::string("the default of DeepSpeed"));
  }
  for (const std::string_view name :
       {"lr", "min-lr", "lr-decay-style", "lr-decay-iters", "lr-decay-samples",
        "lr-warmup-fraction", "lr-warmup-iters", "lr-warmup-samples", "warmup"})
    if (const Given* given = recipe.flags.find(name))
      draft.leave_out(*given, "DeepSpeed's scheduler, LRRangeTest, wins");
  return true;
}

/// The optimizer's type and its own parameters.
void apply_type(Recipe& recipe) {
  Draft& draft = recipe.draft;
  const Given* type = recipe.flags.find("optimizer");
  // Megatron's Adam, Apex's or PyTorch's, uses decoupled weight decay.
  if (type)
    draft.set("optimizer.type", type->values[0] == "adam" ? "adamw" : type->values[0], *type);
  const bool sgd = type && type->values[0] == "sgd";
  if (sgd)
    recipe.copy_or("sgd-momentum", "optimizer.momentum", "0.9");
  else if (const Given* momentum = recipe.flags.find("sgd-momentum"))
    draft.leave_out(*momentum, "is for --optimizer sgd");
  for (const auto& [name, key] : {std::pair{"adam-beta1", "optimizer.beta1"},
                                  {"adam-beta2", "optimizer.beta2"},
                                  {"adam-eps", "optimizer.eps"}}) {
    const Given* given = recipe.flags.find(name);
    if (given && sgd) draft.leave_out(*given, "--optimizer sgd does not use it");
    if (given && !sgd) recipe.copy(*given, key);
  }
}

void apply_optimizer(Recipe& recipe) {
  Draft& draft = recipe.draft;
  apply_type(recipe);
  if (const Given* given = recipe.one_of("start-weight-decay", "weight-decay"))
    recipe.copy(*given, "optimizer.weight_decay");

  const Given* file = recipe.deepspeed ? recipe.json.find("gradient_clipping") : nullptr;
  const Given* flag = recipe.flags.find("clip-grad");
  if (file) {
    if (flag && std::strtod(file->values[0].c_str(), nullptr) !=
                    std::strtod(flag->values[0].c_str(), nullptr))
      draft.note(flag->place, fmt::format("{} wins over {}: DeepSpeed clips as its JSON file says",
                                          file->text(), flag->text()));
    recipe.copy(*file, "optimizer.clip");
  } else if (recipe.deepspeed) {
    draft.note(recipe.place,
               "the JSON file has no gradient_clipping, without which DeepSpeed itself does not "
               "clip; the deck clips as Megatron-LM does");
  }
}

}  // namespace

void apply_schedule_rules(Recipe& recipe) {
  apply_optimizer(recipe);
  if (recipe.before_version_2())
    recipe.draft.set("schedule.dialect", "v1",
                     std::string("the formulas of Megatron-LM before 2.0"));
  if (apply_deepspeed_schedule(recipe)) return;
  for (const auto& [name, key] : {std::pair{"lr", "schedule.peak"}, {"min-lr", "schedule.minimum"}})
    if (const Given* given = recipe.flags.find(name)) recipe.copy(*given, key);
  recipe.copy_or("lr-decay-style", "schedule.type", "linear");
  if (const Given* given = only_one(recipe, {"lr-decay-iters", "lr-decay-samples"}))
    set_length(recipe, *given, "schedule.decay");
  apply_warmup(recipe);
}

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

}  // namespace

namespace {

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
    draft.error(*scaling, "Trireme has the recipe tensorwise");

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

}  // namespace

void apply_precision_rules(Recipe& recipe) {
  apply_fp8(recipe);
  const std::string type = compute_type(recipe);
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
