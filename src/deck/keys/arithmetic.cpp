// The keys of a step: its batch, its precision and what it recomputes.
#include "deck/keys/groups.hpp"

namespace trireme::deck {
namespace {

/// Sets a default of the keys that only a dynamic loss scale has.
std::function<void(Deck&)> if_dynamic(void (*set)(LossScale&)) {
  return [set](Deck& deck) {
    if (is_dynamic(deck.precision)) set(deck.precision.loss_scale);
  };
}

/// Sets a default of the keys that only full recomputation has.
std::function<void(Deck&)> if_full(void (*set)(Recompute&)) {
  return [set](Deck& deck) {
    if (deck.recompute.granularity == Granularity::full) set(deck.recompute);
  };
}

}  // namespace

void arithmetic_keys(std::vector<Key>& rows) {
  rows.insert(
      rows.end(),
      {
          key(TRIREME_MEMBER(batch.micro))
              .required()
              .from(1, kMostBatch)
              .unit("samples")
              .noted()
              .help("Samples that a rank computes at a time."),
          key(TRIREME_MEMBER(batch.global))
              .required()
              .from(1, kMostBatch)
              .unit("samples")
              .noted()
              .help("Samples of an iteration; a multiple of micro * parallel.data."),
          key(TRIREME_MEMBER(batch.rampup.start))
              .from(1, kMostBatch)
              .unit("samples")
              .noted()
              .help("First size of a global batch that grows; a multiple of micro * data."),
          key(TRIREME_MEMBER(batch.rampup.step))
              .from(1, kMostBatch)
              .unit("samples")
              .noted()
              .help("Growth of the global batch at a time; a multiple of micro * data."),
          key(TRIREME_MEMBER(batch.rampup.samples))
              .from(1, kMostSteps)
              .unit("samples")
              .noted()
              .help("Samples until the global batch is batch.global, in equal parts."),
          key(TRIREME_MEMBER(precision.compute))
              .derived("bf16 on cuda, fp32 on host",
                       [](Deck& deck) {
                         deck.precision.compute =
                             deck.run.device == Device::cuda ? Compute::bf16 : Compute::fp32;
                       })
              .noted()
              .help("Type of weights and activations."),
          key(TRIREME_MEMBER(precision.gradients))
              .by_default("fp32")
              .noted()
              .help("Type in which the gradients of layers' matrices are summed; same: that of "
                    "precision.compute."),
          key(TRIREME_MEMBER(precision.loss_scale.value))
              .unset_word("dynamic")
              .above(0)
              .noted()
              .help("Factor on the loss; dynamic follows fp16's overflows, and is 1 without fp16."),
          key(TRIREME_MEMBER(precision.loss_scale.dialect))
              .derived("megatron, where the scale is dynamic", if_dynamic([](LossScale& scale) {
                         scale.dialect = LossScaleDialect::megatron;
                       }))
              .noted()
              .help("Whose defaults and rules: deepspeed gives up at the least scale."),
          key(TRIREME_MEMBER(precision.loss_scale.initial))
              .derived("2^32 (megatron) or 2^16 (deepspeed)", if_dynamic([](LossScale& scale) {
                         scale.initial =
                             scale.dialect == LossScaleDialect::deepspeed ? 65536 : 4294967296;
                       }))
              .above(0)
              .noted()
              .help("First dynamic scale of a fresh run."),
          key(TRIREME_MEMBER(precision.loss_scale.window))
              .derived("1000", if_dynamic([](LossScale& scale) { scale.window = 1000; }))
              .from(1, kMostSteps)
              .unit("iterations")
              .noted()
              .help("Good iterations before the scale doubles."),
          key(TRIREME_MEMBER(precision.loss_scale.hysteresis))
              .derived("2", if_dynamic([](LossScale& scale) { scale.hysteresis = 2; }))
              .from(1, kMostSteps)
              .unit("iterations")
              .noted()
              .help("Overflows before the scale halves; filled up again when it doubles."),
          key(TRIREME_MEMBER(precision.loss_scale.minimum))
              .derived("1", if_dynamic([](LossScale& scale) { scale.minimum = 1; }))
              .above(0)
              .noted()
              .help("Least dynamic scale."),
          key(TRIREME_MEMBER(recompute.granularity))
              .by_default("none")
              .noted()
              .help("What the backward pass recomputes instead of keeping: layer norms (selective; "
                    "Megatron-LM's selective recomputes attention, whose scores are never kept "
                    "here) or layers (full)."),
          key(TRIREME_MEMBER(recompute.method))
              .derived("uniform if full", if_full([](Recompute& recompute) {
                         recompute.method = RecomputeMethod::uniform;
                       }))
              .noted()
              .help("Which layers: all, in groups (uniform), or the first of each stage's chunk "
                    "(block)."),
          key(TRIREME_MEMBER(recompute.layers))
              .derived("1 if full", if_full([](Recompute& recompute) { recompute.layers = 1; }))
              .from(1, kMostLayers)
              .noted()
              .help("Layers of a group (uniform), or how many are computed again (block)."),
          key(TRIREME_MEMBER(recompute.partition))
              .by_default("false")
              .noted()
              .help("Each tensor rank keeps a share of the inputs of what is computed again."),
          key(TRIREME_MEMBER(recompute.offload))
              .by_default("false")
              .noted()
              .help("The inputs of what is computed again go to page-locked host memory."),
          key(TRIREME_MEMBER(recompute.contiguous))
              .by_default("false")
              .noted()
              .help("true: the inputs of what is computed again lie side by side in one buffer, as "
                    "they do with false."),
      });
}

}  // namespace trireme::deck
