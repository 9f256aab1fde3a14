// The rules that several flags make together, one function for each part of the deck. Each reads
// the flags whose row in the table has Fate::rule, sets keys, and names what contradicts.
#pragma once

#include "convert/flags/rules/recipe.hpp"

namespace trireme::convert::flags {

/// What is said of a network with several experts.
inline constexpr std::string_view kNoExperts =
    "Trireme has no mixture of experts; train the dense model";

/// Network, layout, ZeRO, recomputation.
void apply_model_rules(Recipe& recipe);
void apply_layout_rules(Recipe& recipe);
void apply_recompute_rules(Recipe& recipe);

/// Lengths in tokens, as Megatron-DeepSpeed has them: makes them samples, before the rules below.
void apply_token_rules(Recipe& recipe);

/// Batches and ramp-up, the run's length. DeepSpeed's train_batch_size = micro * steps * data ranks
/// is checked here.
void apply_batch_rules(Recipe& recipe);

/// Types of numbers and loss scaling.
void apply_precision_rules(Recipe& recipe);

/// Learning rate and optimizer.
void apply_schedule_rules(Recipe& recipe);

/// Datasets and tokenizer; checkpoints, evaluation and logs.
void apply_data_rules(Recipe& recipe);
void apply_output_rules(Recipe& recipe);

}  // namespace trireme::convert::flags
