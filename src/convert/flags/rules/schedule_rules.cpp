// Learning rate and optimizer.
#include <fmt/format.h>

#include <cstdlib>
#include <vector>

#include "convert/flags/rules/rules.hpp"

namespace trireme::convert::flags {
namespace {

/// Those of `names` that are given; an error where they are several.
const Given* only_one(Recipe& recipe, std::initializer_list<std::string_view> names) {
  const Given* found = nullptr;
  for (const std::string_view name : names) {
    const Given* given = recipe.flags.find(name);
    // 0 is Megatron's word for "not given".
    if (!given || (name.starts_with("lr-warmup-") && given->values[0] == "0")) continue;
    if (found)
      recipe.draft.error(*given, fmt::format("'{}' says the same length; keep one", found->text()));
    else
      found = given;
  }
  return found;
}

/// A length in what `given`'s name counts.
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
    // Before 2.0 there always was a warm-up.
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
      recipe.draft.error(*first, "a warm-up begins at 0; leave it out");
    else
      recipe.draft.leave_out(*first, "a warm-up begins at 0");
  }
}

/// DeepSpeed's own schedule, which wins over the program's; true where there is one.
bool apply_deepspeed_schedule(Recipe& recipe) {
  const Given* type = recipe.deepspeed ? recipe.json.find("scheduler.type") : nullptr;
  if (!type) return false;
  Draft& draft = recipe.draft;
  if (type->values[0] != "LRRangeTest") {
    draft.error(*type,
                "only LRRangeTest has a key; leave the scheduler out of the file, so that "
                "the flags of the command line hold");
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

/// The optimizer and what it alone has.
void apply_type(Recipe& recipe) {
  Draft& draft = recipe.draft;
  const Given* type = recipe.flags.find("optimizer");
  // Both Apex's and PyTorch's, as Megatron calls them, decay weights apart from the gradient.
  if (type)
    draft.set("optimizer.type", type->values[0] == "adam" ? "adamw" : type->values[0], *type);
  const bool sgd = type && type->values[0] == "sgd";
  if (sgd)
    recipe.copy_or("sgd-momentum", "optimizer.momentum", "0.9");
  else if (const Given* momentum = recipe.flags.find("sgd-momentum"))
    draft.leave_out(*momentum, "belongs to --optimizer sgd");
  for (const auto& [name, key] : {std::pair{"adam-beta1", "optimizer.beta1"},
                                  {"adam-beta2", "optimizer.beta2"},
                                  {"adam-eps", "optimizer.eps"}}) {
    const Given* given = recipe.flags.find(name);
    if (given && sgd) draft.leave_out(*given, "--optimizer sgd has no use for it");
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

}  // namespace trireme::convert::flags
