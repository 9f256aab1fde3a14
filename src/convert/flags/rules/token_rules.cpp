// Lengths in tokens, which Megatron-DeepSpeed has beside those in samples and iterations.
#include <fmt/format.h>

#include "convert/flags/rules/rules.hpp"

namespace trireme::convert::flags {
namespace {

/// A length in tokens, and the same in samples and in iterations.
struct Length {
  std::string_view tokens, samples, iterations;
};

/// A run that counts iterations: says what to write.
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

/// Puts the samples that `given` comes to among the flags, in place of --train-samples and the
/// like.
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
    // A copy: the flags around it change.
    const Given given = *found;
    if (recipe.flags.mentions("train-iters"))
      ask_for_iterations(recipe, given, length, sequence);
    else
      put_samples(recipe, given, length, sequence);
  }
}

}  // namespace trireme::convert::flags
