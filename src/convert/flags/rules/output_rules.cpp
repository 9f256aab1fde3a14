// Checkpoints, evaluation, logs.
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include "convert/flags/rules/rules.hpp"
#include "deck/value.hpp"

namespace trireme::convert::flags {
namespace {

/// The run's folder, in which checkpoints are in a folder `checkpoints`.
std::string run_folder(const std::string& save) {
  const std::filesystem::path path(save);
  const bool inner = path.filename() == "checkpoints" && path.has_parent_path();
  return inner ? path.parent_path().string() : save;
}

/// Flags that begin a new run with the weights of another.
void apply_new_run(Recipe& recipe) {
  for (const std::string_view name : {"finetune", "no-load-optim", "no-load-rng"}) {
    const Given* given = recipe.flags.find(name);
    if (!given) continue;
    if (recipe.flags.mentions("load"))
      recipe.draft.error(*given,
                         "a checkpoint continues its run; 'trireme-convert hf' there and back "
                         "makes one of iteration 0");
    else
      recipe.draft.leave_out(*given, "loads nothing without --load");
  }
}

void apply_checkpoints(Recipe& recipe) {
  Draft& draft = recipe.draft;
  const Given* save = recipe.flags.find("save");
  const Given* load = recipe.flags.find("load");
  const Given* every = recipe.flags.find("save-interval");
  if (save) {
    draft.set("run.output", deck::write_text(run_folder(save->values[0])), *save);
    if (every)
      recipe.copy(*every, "checkpoint.every", "iterations");
    else if (recipe.is_first_release())
      draft.set("checkpoint.every", "5000 iterations",
                std::string("the default of the first Megatron-LM"));
  } else {
    if (every) draft.leave_out(*every, "saves nothing without --save");
    draft.set("checkpoint.at_end", "false", std::string("no --save"));
  }
  if (const Given* retain = recipe.flags.find("save-retain-interval"); retain && save) {
    draft.set("checkpoint.keep", "1", *retain);
    recipe.copy(*retain, "checkpoint.keep_every", "iterations");
  } else if (retain) {
    draft.leave_out(*retain, "saves nothing without --save");
  }
  apply_new_run(recipe);
  if (!load) return;
  if (save && save->values == load->values) {
    draft.leave_out(*load, "a run goes on from the newest checkpoint of run.output by itself");
    return;
  }
  recipe.copy(*load, "checkpoint.load");
  draft.note(load->place, fmt::format("{} is a checkpoint of Megatron-LM: name one of Trireme in "
                                      "checkpoint.load, or delete the key to begin anew",
                                      load->text()));
}

/// Whether anything is kept for a part of the data: in datasets of its own, under `key`, or by the
/// weight in --split behind `commas` commas.
bool keeps(const Recipe& recipe, const char* key, int commas) {
  if (recipe.draft.has(key)) return true;
  const Given* split = recipe.flags.find("split");
  if (!split) return true;
  std::string_view weights = split->values[0];
  for (; commas > 0; --commas) {
    const std::size_t comma = weights.find(',');
    if (comma == std::string_view::npos) return false;
    weights.remove_prefix(comma + 1);
  }
  return std::strtod(weights.data(), nullptr) > 0;
}

void apply_evaluation(Recipe& recipe) {
  Draft& draft = recipe.draft;
  const Given* every = recipe.flags.find("eval-interval");
  const Given* iterations = recipe.flags.find("eval-iters");
  const bool none = iterations && iterations->values[0] == "0";
  const bool valid = !none && keeps(recipe, "data.valid", 1);
  const bool test = !none && keeps(recipe, "data.test", 2);
  const std::string reason =
      none ? "--eval-iters 0 evaluates nothing" : "--split keeps nothing for validation";
  if (valid)
    recipe.copy_or("eval-interval", "evaluate.every", "1000", "iterations");
  else if (every)
    draft.leave_out(*every, reason);
  if (valid || test)
    recipe.copy_or("eval-iters", "evaluate.iterations", "100");
  else if (iterations)
    draft.leave_out(*iterations, reason);
  if (none) draft.set("evaluate.at_end", "false", *iterations);
}

void apply_logs(Recipe& recipe) {
  Draft& draft = recipe.draft;
  recipe.copy_or("log-interval", "log.every", "100");
  if (const Given* folder = recipe.flags.find("tensorboard-dir")) {
    draft.set("log.tensorboard.enable", "true", *folder);
    const bool bigscience = recipe.deepspeed && !recipe.before_version_2();
    draft.set("log.tensorboard.dialect", bigscience ? "bigscience" : "megatron",
              std::string("the tags that the recipe's program writes"));
    draft.note(folder->place, "event files go to run.output/tensorboard");
  } else {
    draft.set("log.tensorboard.enable", "false", std::string("no --tensorboard-dir"));
  }
  if (const Given* level = recipe.flags.find("timing-log-level"))
    draft.set("log.timers", recipe.whole(level).value_or(0) > 0 ? "true" : "false", *level);
}

}  // namespace

void apply_output_rules(Recipe& recipe) {
  apply_checkpoints(recipe);
  apply_evaluation(recipe);
  apply_logs(recipe);
}

}  // namespace trireme::convert::flags
