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
              .help("Samples of a micro-batch."),
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
              .help("Batch-size ramp-up: first global batch; a multiple of micro * data."),
          key(TRIREME_MEMBER(batch.rampup.step))
              .from(1, kMostBatch)
              .unit("samples")
              .noted()
              .help(
                  "Batch-size ramp-up: increment of the global batch; a multiple of micro * data."),
          key(TRIREME_MEMBER(batch.rampup.samples))
              .from(1, kMostSteps)
              .unit("samples")
              .noted()
              .help("Batch-size ramp-up: samples until batch.global is reached, in equal steps."),
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
              .help("Type in which gradients of the layers' matrices are accumulated and reduced; "
                    "same: that of precision.compute."),
          key(TRIREME_MEMBER(precision.loss_scale.value))
              .unset_word("dynamic")
              .above(0)
              .noted()
              .help("Factor on the loss; dynamic adapts to fp16 overflows, and is 1 without fp16."),
          key(TRIREME_MEMBER(precision.loss_scale.dialect))
              .derived("megatron, where the scale is dynamic", if_dynamic([](LossScale& scale) {
                         scale.dialect = LossScaleDialect::megatron;
                       }))
              .noted()
              .help("Defaults and rules of Megatron-LM or DeepSpeed; deepspeed aborts on an "
                    "overflow at the minimum scale."),
          key(TRIREME_MEMBER(precision.loss_scale.initial))
              .derived("2^32 (megatron) or 2^16 (deepspeed)", if_dynamic([](LossScale& scale) {
                         scale.initial =
                             scale.dialect == LossScaleDialect::deepspeed ? 65536 : 4294967296;
                       }))
              .above(0)
              .noted()
              .help("Initial dynamic scale of a fresh run."),
          key(TRIREME_MEMBER(precision.loss_scale.window))
              .derived("1000", if_dynamic([](LossScale& scale) { scale.window = 1000; }))
              .from(1, kMostSteps)
              .unit("iterations")
              .noted()
              .help("Iterations without overflow before the scale doubles."),
          key(TRIREME_MEMBER(precision.loss_scale.hysteresis))
              .derived("2", if_dynamic([](LossScale& scale) { scale.hysteresis = 2; }))
              .from(1, kMostSteps)
              .unit("iterations")
              .noted()
              .help("Overflows before the scale halves; reset when it doubles."),
          key(TRIREME_MEMBER(precision.loss_scale.minimum))
              .derived("1", if_dynamic([](LossScale& scale) { scale.minimum = 1; }))
              .above(0)
              .noted()
              .help("Minimum dynamic scale."),
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
              .help("Layers to recompute: all, in groups (uniform), or the first of each chunk of "
                    "a stage (block)."),
          key(TRIREME_MEMBER(recompute.layers))
              .derived("1 if full", if_full([](Recompute& recompute) { recompute.layers = 1; }))
              .from(1, kMostLayers)
              .noted()
              .help("Layers of a group (uniform), or number of recomputed layers (block)."),
          key(TRIREME_MEMBER(recompute.partition))
              .by_default("false")
              .noted()
              .help("Shard the inputs kept for recomputation over the tensor ranks."),
          key(TRIREME_MEMBER(recompute.offload))
              .by_default("false")
              .noted()
              .help("Keep the inputs for recomputation in page-locked host memory."),
          key(TRIREME_MEMBER(recompute.contiguous))
              .by_default("false")
              .noted()
              .help("No effect, accepted for old recipes: the inputs are in one buffer anyway."),
      });
}

}  // namespace trireme::deck
