// Batches, ramp-up, the length of the run; lengths in tokens become samples.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "convert/flags/recipe.hpp"
#include "core/text.hpp"
#include "deck/value.hpp"

namespace trireme::convert::flags {
namespace {

/// The factors of the global batch: global = micro * steps * data.
struct Batch {
  std::optional<std::int64_t> micro, steps, data, global;
};

/// Sets `part` to the value of `given`; an error if it already has another.
void agree(Recipe& recipe, std::optional<std::int64_t>& part, const Given* given,
           std::string_view before) {
  const auto value = recipe.whole(given);
  if (!value) return;
  if (part && *part != *value)
    recipe.draft.error(*given,
                       fmt::format("{} says {}; write the same value in both, or remove it from "
                                   "the file",
                                   before, *part));
  else
    part = value;
}

std::string factors(const Recipe& recipe, const Batch& batch) {
  const std::string where =
      recipe.ranks
          ? fmt::format(" ({}: {})", counted(recipe.ranks->count, "rank"), recipe.ranks->source)
          : "";
  return fmt::format("micro-batch {} * accumulation steps {} * data ranks {}{}", *batch.micro,
                     *batch.steps, *batch.data, where);
}

/// Checks that the accumulation steps of `given` lead to the requested global batch.
void check_steps(Recipe& recipe, const Batch& batch, const Given* given) {
  const bool complete = batch.global && batch.micro && batch.data && batch.steps;
  if (!given || !complete) return;
  const std::int64_t product = *batch.micro * *batch.data * *batch.steps;
  if (product != *batch.global)
    recipe.draft.error(*given, fmt::format("gives {} = {}, not --global-batch-size {}; remove it",
                                           product, factors(recipe, batch), *batch.global));
}

/// DeepSpeed's assertion: train_batch_size is the product of its factors.
void check_train_batch(Recipe& recipe, Batch& batch) {
  const Given* given = recipe.deepspeed ? recipe.json.find("train_batch_size") : nullptr;
  const auto total = recipe.whole(given);
  if (!total) return;
  // Two of three determine the third: steps or the number of ranks.
  const std::int64_t known = batch.micro.value_or(0) * batch.steps.value_or(1);
  const bool divides = known > 0 && *total % known == 0;
  if (!batch.data && batch.micro && batch.steps && divides) batch.data = *total / known;
  if (batch.global && *batch.global != *total) {
    const bool known = batch.micro && batch.steps && batch.data;
    recipe.draft.error(
        *given,
        fmt::format("the command line gives {}{}; write {} there, or remove "
                    "it from the file",
                    *batch.global, known ? " = " + factors(recipe, batch) : "", *batch.global));
  }
  if (!batch.global) batch.global = total;
}

/// Sets the global batch, computed if no flag sets it.
void apply_global(Recipe& recipe, Batch& batch) {
  Draft& draft = recipe.draft;
  // Without --global-batch-size an iteration is one step unless steps are given.
  if (!batch.global && batch.micro && !batch.steps &&
      (batch.data || recipe.flags.has("batch-size")))
    batch.steps = 1;
  if (!batch.global && batch.micro && batch.data)
    batch.global = *batch.micro * *batch.data * *batch.steps;
  check_train_batch(recipe, batch);
  if (!batch.global) {
    if (batch.micro)
      draft.error(recipe.place,
                  "the global batch is micro-batch * data ranks, and the launcher does not say how "
                  "many ranks there are; give --ranks N");
    return;
  }
  const std::string value = fmt::format("{}", *batch.global);
  if (const Given* given = recipe.flags.find("global-batch-size"))
    draft.set("batch.global", value, *given);
  else if (batch.micro && batch.data)
    draft.set("batch.global", value,
              fmt::format("micro-batch {} * accumulation steps {} * data ranks {}", *batch.micro,
                          batch.steps.value_or(1), *batch.data));
  else
    draft.set("batch.global", value, *recipe.json.find("train_batch_size"));
}

void apply_rampup(Recipe& recipe, const Batch& batch) {
  const Given* given = recipe.flags.find("rampup-batch-size");
  if (!given) return;
  Draft& draft = recipe.draft;
  if (given->values.size() != 3) {
    draft.error(*given, "needs three numbers: start, increment, samples");
    return;
  }
  const bool by_samples = recipe.flags.mentions("train-samples");
  if (!by_samples && recipe.flags.mentions("train-iters"))
    draft.error(*given, "needs --train-samples; Megatron-LM refuses it with --train-iters");
  std::int64_t numbers[3];
  for (int i = 0; i < 3; ++i) {
    Given one = *given;
    one.values = {given->values[static_cast<std::size_t>(i)]};
    const auto value = recipe.whole(&one);
    if (!value) return;
    numbers[i] = *value;
  }
  const auto [start, step, samples] = numbers;
  const bool leads_there =
      !batch.global || (step > 0 && start <= *batch.global && (*batch.global - start) % step == 0);
  if (!leads_there)
    draft.error(*given, fmt::format("increments of {} do not lead from {} to the global batch {}",
                                    step, start, *batch.global));
  // The deck's checks would repeat the error.
  if (!by_samples || !leads_there) return;
  draft.set("batch.rampup.start", given->values[0], *given);
  draft.set("batch.rampup.step", given->values[1], *given);
  draft.set("batch.rampup.samples", given->values[2], *given);
}

void apply_length(Recipe& recipe) {
  Draft& draft = recipe.draft;
  const Given* iterations = recipe.flags.find("train-iters");
  const Given* samples = recipe.flags.find("train-samples");
  if (iterations && samples)
    draft.error(*samples,
                fmt::format("'{}' sets the length of the run as well; keep one of the two",
                            iterations->text()));
  if (iterations && recipe.whole(iterations) == 0)
    draft.error(*iterations, "only evaluates; use trireme-evaluate");
  else if (iterations)
    recipe.copy(*iterations, "train.iterations");
  else if (samples)
    recipe.copy(*samples, "train.samples");
  if (const Given* skip = recipe.flags.find("skip-train-iteration-range"))
    draft.set("train.skip", fmt::format("[{}]", fmt::join(skip->values, ", ")), *skip);
}

}  // namespace

void apply_batch_rules(Recipe& recipe) {
  Batch batch;
  const Given* micro = recipe.one_of("micro-batch-size", "batch-size");
  const Given* json_micro =
      recipe.deepspeed ? recipe.json.find("train_micro_batch_size_per_gpu") : nullptr;
  batch.micro = recipe.whole(micro);
  agree(recipe, batch.micro, json_micro, micro ? micro->text() : "");
  if (micro || json_micro) recipe.copy(micro ? *micro : *json_micro, "batch.micro");

  const Given* steps = recipe.one_of("gas", "gradient-accumulation-steps");
  batch.steps = recipe.whole(steps);
  const Given* json_steps =
      recipe.deepspeed ? recipe.json.find("gradient_accumulation_steps") : nullptr;
  agree(recipe, batch.steps, json_steps, steps ? steps->text() : "");
  batch.data = recipe.data();
  batch.global = recipe.whole("global-batch-size");
  if (batch.global && batch.micro > 0 && batch.data > 0 && !batch.steps &&
      *batch.global % *batch.micro == 0 && *batch.global / *batch.micro % *batch.data == 0)
    batch.steps = *batch.global / *batch.micro / *batch.data;
  check_steps(recipe, batch, steps ? steps : json_steps);
  apply_global(recipe, batch);
  apply_rampup(recipe, batch);
  apply_length(recipe);
}

namespace {

/// A length in tokens, and the same in samples and in iterations.
struct Length {
  std::string_view tokens, samples, iterations;
};

/// The error for a run that counts iterations, with the number to write.
void ask_for_iterations(Recipe& recipe, const Given& given, const Length& length,
                        std::int64_t sequence) {
  const std::int64_t tokens = recipe.whole(&given).value_or(0);
  const std::int64_t each = sequence * recipe.whole("global-batch-size").value_or(0);
  const std::string number = each > 0 ? fmt::format("{} = ", tokens / each) : "";
  recipe.draft.error(given,
                     fmt::format("counts tokens, but the run counts iterations; give --{} {}tokens "
                                 "/ (--seq-length * --global-batch-size)",
                                 length.iterations, number));
}

/// Adds `given`, converted to samples, to the flags as --train-samples or its like.
void put_samples(Recipe& recipe, const Given& given, const Length& length, std::int64_t sequence) {
  const auto tokens = recipe.whole(&given);
  if (!tokens) return;
  const std::int64_t samples = *tokens / sequence;
  if (const Given* other = recipe.flags.find(length.samples)) {
    const bool ends_first =
        length.tokens == "train-tokens" && recipe.whole(other).value_or(0) <= samples;
    if (ends_first) return recipe.draft.leave_out(given, other->text() + " ends the run before");
    recipe.draft.leave_out(*other, given.text() + " wins");
  }
  recipe.flags.add({.flag = find_flag(command_flags(), length.samples),
                    .name = fmt::format("{} / {} =", given.text(), sequence),
                    .values = {fmt::format("{}", samples)},
                    .place = given.place});
}

}  // namespace

void apply_token_rules(Recipe& recipe) {
  constexpr Length kLengths[] = {{"train-tokens", "train-samples", "train-iters"},
                                 {"lr-decay-tokens", "lr-decay-samples", "lr-decay-iters"},
                                 {"lr-warmup-tokens", "lr-warmup-samples", "lr-warmup-iters"}};
  const std::int64_t sequence = recipe.whole("seq-length").value_or(0);
  for (const Length& length : kLengths) {
    const Given* found = recipe.flags.find(length.tokens);
    if (!found || sequence <= 0) continue;
    // A copy: put_samples() changes the flags.
    const Given given = *found;
    if (recipe.flags.mentions("train-iters"))
      ask_for_iterations(recipe, given, length, sequence);
    else
      put_samples(recipe, given, length, sequence);
  }
}

}  // namespace trireme::convert::flags
