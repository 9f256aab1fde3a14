// Optimizer and learning-rate schedule.
#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <string>
#include <string_view>

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

/// Muon, as Megatron-Core's emerging optimizers have it.
void apply_muon(Recipe& recipe, bool muon) {
  Draft& draft = recipe.draft;
  const Arguments& flags = recipe.flags;
  if (!muon) {
    for (const std::string_view name :
         {"muon-momentum", "muon-nesterov", "muon-use-nesterov", "muon-scale-mode",
          "muon-extra-scale-factor", "muon-num-ns-steps"})
      if (const Given* given = flags.find(name)) draft.leave_out(*given, "is for --optimizer muon");
    return;
  }
  recipe.copy_or("muon-momentum", "optimizer.momentum", "0.9");
  const Given* nesterov = recipe.one_of("muon-nesterov", "muon-use-nesterov");
  if (nesterov)
    draft.set("optimizer.muon.nesterov", "true", *nesterov);
  else
    draft.set("optimizer.muon.nesterov", "false", kMegatronDefault);
  allow_only(recipe, "muon-num-ns-steps", {"5"}, "Trireme makes 5 Newton-Schulz steps");
  const Given* mode = flags.find("muon-scale-mode");
  const Given* extra = flags.find("muon-extra-scale-factor");
  const std::string name = mode ? mode->values[0] : "spectral";
  const double factor = extra ? std::strtod(extra->values[0].c_str(), nullptr) : 1;
  const std::string origin =
      fmt::format("--muon-scale-mode {} --muon-extra-scale-factor {}", name, factor);
  if (name == "spectral" && factor == 0.2)
    draft.set("optimizer.muon.scale", "match-rms", origin);
  else if (name == "shape_scaling" && factor == 1)
    draft.set("optimizer.muon.scale", "spectral", origin);
  else
    draft.error(recipe.place, origin +
                                  ": optimizer.muon.scale has sqrt(max(m, n)) with the factor 0.2 "
                                  "(spectral, 0.2) and sqrt(max(1, m / n)) (shape_scaling, 1)");
}

/// The optimizer's type and its own parameters.
void apply_type(Recipe& recipe) {
  Draft& draft = recipe.draft;
  const Given* type = recipe.flags.find("optimizer");
  // Megatron's Adam, Apex's or PyTorch's, uses decoupled weight decay.
  std::string name = type ? type->values[0] : "adam";
  if (name == "dist_muon") name = "muon";
  if (type) draft.set("optimizer.type", name == "adam" ? "adamw" : name, *type);
  apply_muon(recipe, name == "muon");
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

/// The learning rate of embeddings and of the head, as a factor of the others'.
void apply_decoupled_rate(Recipe& recipe) {
  const Given* given = recipe.flags.find("decoupled-lr");
  const Given* minimum = recipe.flags.find("decoupled-min-lr");
  const auto number = [](const Given* one) {
    return one ? std::strtod(one->values[0].c_str(), nullptr) : 0;
  };
  if (!given) {
    if (minimum) recipe.draft.leave_out(*minimum, "has no effect without --decoupled-lr");
    return;
  }
  const double peak = number(recipe.flags.find("lr"));
  if (peak <= 0) return;
  const double ratio = number(given) / peak;
  if (minimum && std::abs(number(minimum) - ratio * number(recipe.flags.find("min-lr"))) >
                     1e-6 * number(given))
    recipe.draft.error(*minimum, fmt::format("one factor applies to the whole schedule: with "
                                             "'{}' it is {:.4g} times --min-lr",
                                             given->text(), ratio));
  recipe.draft.set("optimizer.rate.embedding", fmt::format("{:.6g}", ratio), *given);
  if (recipe.flags.has("untie-embeddings-and-output-weights"))
    recipe.draft.set("optimizer.rate.head", fmt::format("{:.6g}", ratio), *given);
}

/// The schedule of --lr-decay-style WSD: warm-up, a constant rate, and its last part.
void apply_wsd(Recipe& recipe, const Given* style) {
  Draft& draft = recipe.draft;
  if (!style || style->values[0] != "WSD") {
    for (const std::string_view name :
         {"lr-wsd-decay-style", "lr-wsd-decay-iters", "lr-wsd-decay-samples"})
      if (const Given* given = recipe.flags.find(name))
        draft.leave_out(*given, "has no effect without --lr-decay-style WSD");
    return;
  }
  draft.set("schedule.type", "wsd", *style);
  if (const Given* given = only_one(recipe, {"lr-wsd-decay-iters", "lr-wsd-decay-samples"}))
    set_length(recipe, *given, "schedule.wsd.decay");
  else
    draft.error(*style, "needs --lr-wsd-decay-iters or --lr-wsd-decay-samples");
  const Given* shape = recipe.flags.find("lr-wsd-decay-style");
  if (shape && shape->values[0] == "minus_sqrt")
    draft.set("schedule.wsd.shape", "minus-sqrt", *shape);
  else
    recipe.copy_or("lr-wsd-decay-style", "schedule.wsd.shape", "exponential");
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
  const Given* style = recipe.flags.find("lr-decay-style");
  apply_wsd(recipe, style);
  if (!style || style->values[0] != "WSD")
    recipe.copy_or("lr-decay-style", "schedule.type", "linear");
  apply_decoupled_rate(recipe);
  if (const Given* given = only_one(recipe, {"lr-decay-iters", "lr-decay-samples"}))
    set_length(recipe, *given, "schedule.decay");
  apply_warmup(recipe);
}

}  // namespace trireme::convert::flags
