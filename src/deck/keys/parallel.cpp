// The keys of the run, of its layout and of a step: its batch, its precision and what it
// recomputes.
#include "deck/keys/row.hpp"

namespace trireme::deck {

void run_keys(std::vector<Key>& rows) {
  rows.insert(
      rows.end(),
      {
          key(TRIREME_MEMBER(run.name))
              .derived("the deck file's name", {})
              .help("Name of the run."),
          key(TRIREME_MEMBER(run.output))
              .derived("runs/<run.name>",
                       [](Deck& deck) { deck.run.output = "runs/" + deck.run.name; })
              .help("The run folder: logs and checkpoints."),
          key(TRIREME_MEMBER(run.seed))
              .by_default("1234")
              .from(0, kMaxSeed)
              .immutable()
              .help("Seed of initial weights and dropout."),
          key(TRIREME_MEMBER(run.device))
              .by_default("auto")
              .warn()
              .help("Where to compute; auto: on GPUs if there are any."),
          key(TRIREME_MEMBER(run.deterministic))
              .by_default("true")
              .built({"true"})
              .because("every backend is deterministic")
              .warn()
              .help("Repeated runs are bit-identical."),
          key(TRIREME_MEMBER(run.mixed_gpus))
              .by_default("false")
              .help("Allow GPUs of several kinds in one run; false: refuse to start on them."),
      });
}

void parallel_keys(std::vector<Key>& rows) {
  rows.insert(
      rows.end(),
      {
          key(TRIREME_MEMBER(parallel.tensor))
              .by_default("1")
              .from(1, kMaxRanks)
              .warn()
              .help("Ranks that share each layer; divides model.heads and model.ffn."),
          key(TRIREME_MEMBER(parallel.pipeline))
              .by_default("1")
              .from(1, kMaxRanks)
              .warn()
              .help("Pipeline stages."),
          key(TRIREME_MEMBER(parallel.data))
              .unset_word("auto")
              .from(1, kMaxRanks)
              .warn()
              .help("Data-parallel copies of the model; auto: ranks / (tensor * pipeline)."),
          key(TRIREME_MEMBER(parallel.partition))
              .unset_word("auto")
              .from(0, kMaxLayers)
              .unit("layers")
              .warn()
              .help("Layers per stage, as a list or 0-11-8-8-5-0; auto: equal numbers, or equal "
                    "FLOPs "
                    "with the head's where the layers do not divide."),
          key(TRIREME_MEMBER(parallel.schedule))
              .by_default("1f1b")
              .warn()
              .help("Order of forward and backward passes in the pipeline."),
          key(TRIREME_MEMBER(parallel.interleave))
              .by_default("1")
              .from(1, kMaxLayers)
              .warn()
              .help("Chunks of layers (virtual stages) per stage, for schedule: interleaved."),
          key(TRIREME_MEMBER(parallel.sequence))
              .by_default("false")
              .warn()
              .help("Sequence parallelism: split layer norms and dropout along the sequence over "
                    "the tensor ranks; no effect with tensor 1."),
          key(TRIREME_MEMBER(parallel.zero))
              .by_default("1")
              .from(0, 3)
              .warn()
              .help("ZeRO stage: shard optimizer state (1), gradients (2) and weights (3) over the "
                    "data ranks."),
          key(TRIREME_MEMBER(parallel.bucket))
              .by_default("25e6")
              .from(1, 1e12)
              .unit("elements")
              .warn()
              .help("Gradients reduced over the data ranks at a time, of one layer at most."),
          key(TRIREME_MEMBER(parallel.overlap.gradients))
              .by_default("true")
              .help("Overlap the reduction of gradients with the backward pass."),
          key(TRIREME_MEMBER(parallel.overlap.parameters))
              .by_default("true")
              .help("Overlap the gathering of parameters with the passes."),
          key(TRIREME_MEMBER(parallel.overlap.pipeline))
              .by_default("true")
              .help("Overlap messages between stages with computation."),
      });
}

namespace {

/// Sets a default of the keys that only a dynamic loss scale has.
std::function<void(Deck&)> if_dynamic(void (*set)(LossScale&)) {
  return [set](Deck& deck) {
    if (is_dynamic(deck.precision)) set(deck.precision.loss_scale);
  };
}

/// Sets a default of the keys that only FP8 GEMMs have.
std::function<void(Deck&)> if_fp8(void (*set)(Fp8&)) {
  return [set](Deck& deck) {
    if (deck.precision.gemm == GemmPrecision::fp8) set(deck.precision.fp8);
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
              .from(1, kMaxBatch)
              .unit("samples")
              .warn()
              .help("Samples of a micro-batch."),
          key(TRIREME_MEMBER(batch.global))
              .required()
              .from(1, kMaxBatch)
              .unit("samples")
              .warn()
              .help("Samples of an iteration; a multiple of micro * parallel.data."),
          key(TRIREME_MEMBER(batch.rampup.start))
              .from(1, kMaxBatch)
              .unit("samples")
              .warn()
              .help("Batch-size ramp-up: first global batch; a multiple of micro * data."),
          key(TRIREME_MEMBER(batch.rampup.step))
              .from(1, kMaxBatch)
              .unit("samples")
              .warn()
              .help(
                  "Batch-size ramp-up: increment of the global batch; a multiple of micro * data."),
          key(TRIREME_MEMBER(batch.rampup.samples))
              .from(1, kMaxSteps)
              .unit("samples")
              .warn()
              .help("Batch-size ramp-up: samples until batch.global is reached, in equal steps."),
          key(TRIREME_MEMBER(precision.compute))
              .derived("bf16 on cuda, fp32 on host",
                       [](Deck& deck) {
                         deck.precision.compute =
                             deck.run.device == Device::cuda ? Compute::bf16 : Compute::fp32;
                       })
              .warn()
              .help("Type of weights and activations."),
          key(TRIREME_MEMBER(precision.embedding))
              .by_default("same")
              .warn()
              .help("Type in which embeddings are looked up and summed; same: that of "
                    "precision.compute; fp32: the master weights, whose sum is rounded once (needs "
                    "parallel.zero 0; no effect with compute fp32). Gradients do not change, the "
                    "output projection reads weights of precision.compute."),
          key(TRIREME_MEMBER(precision.gemm))
              .by_default("same")
              .warn()
              .help("Type of the operands of the layers' GEMMs; same: that of precision.compute; "
                    "fp8: 8 bits, on GPUs of compute capability 8.9 and newer."),
          key(TRIREME_MEMBER(precision.fp8.recipe))
              .derived("tensor if fp8", if_fp8([](Fp8& fp8) { fp8.recipe = Fp8Recipe::tensor; }))
              .warn()
              .help("What has a scale, from its largest magnitude (current scaling): each tensor; "
                    "or each block, 128 elements of activations and gradients and 128 x 128 of "
                    "weights, on GPUs of compute capability 9.0."),
          key(TRIREME_MEMBER(precision.fp8.forward))
              .derived("e4m3 if fp8", if_fp8([](Fp8& fp8) { fp8.forward = Fp8Type::e4m3; }))
              .warn()
              .help("FP8 type of inputs and weights; e4m3: e5m2 has too few digits for them."),
          key(TRIREME_MEMBER(precision.fp8.backward))
              .derived("e5m2 if fp8", if_fp8([](Fp8& fp8) { fp8.backward = Fp8Type::e5m2; }))
              .warn()
              .help("FP8 type of the gradients of outputs: e5m2 has the larger range, e4m3 more "
                    "digits."),
          key(TRIREME_MEMBER(precision.fp8.first_layers))
              .derived("0 if fp8", if_fp8([](Fp8& fp8) { fp8.first_layers = 0; }))
              .from(0, kMaxLayers)
              .unit("layers")
              .warn()
              .help("First layers of the model whose GEMMs stay in precision.compute."),
          key(TRIREME_MEMBER(precision.fp8.last_layers))
              .derived("0 if fp8", if_fp8([](Fp8& fp8) { fp8.last_layers = 0; }))
              .from(0, kMaxLayers)
              .unit("layers")
              .warn()
              .help("Last layers of the model whose GEMMs stay in precision.compute."),
          key(TRIREME_MEMBER(precision.gradients))
              .by_default("fp32")
              .warn()
              .help("Type in which gradients of the layers' matrices are accumulated and reduced; "
                    "same: that of precision.compute."),
          key(TRIREME_MEMBER(precision.loss_scale.value))
              .unset_word("dynamic")
              .above(0)
              .warn()
              .help("Factor on the loss; dynamic adapts to fp16 overflows, and is 1 without fp16."),
          key(TRIREME_MEMBER(precision.loss_scale.dialect))
              .derived("megatron, where the scale is dynamic", if_dynamic([](LossScale& scale) {
                         scale.dialect = LossScaleDialect::megatron;
                       }))
              .warn()
              .help("Defaults and rules of Megatron-LM or DeepSpeed; deepspeed aborts on an "
                    "overflow at the minimum scale."),
          key(TRIREME_MEMBER(precision.loss_scale.initial))
              .derived("2^32 (megatron) or 2^16 (deepspeed)", if_dynamic([](LossScale& scale) {
                         scale.initial =
                             scale.dialect == LossScaleDialect::deepspeed ? 65536 : 4294967296;
                       }))
              .above(0)
              .warn()
              .help("Initial dynamic scale of a fresh run."),
          key(TRIREME_MEMBER(precision.loss_scale.window))
              .derived("1000", if_dynamic([](LossScale& scale) { scale.window = 1000; }))
              .from(1, kMaxSteps)
              .unit("iterations")
              .warn()
              .help("Iterations without overflow before the scale doubles."),
          key(TRIREME_MEMBER(precision.loss_scale.hysteresis))
              .derived("2", if_dynamic([](LossScale& scale) { scale.hysteresis = 2; }))
              .from(1, kMaxSteps)
              .unit("iterations")
              .warn()
              .help("Overflows before the scale halves; reset when it doubles."),
          key(TRIREME_MEMBER(precision.loss_scale.minimum))
              .derived("1", if_dynamic([](LossScale& scale) { scale.minimum = 1; }))
              .above(0)
              .warn()
              .help("Minimum dynamic scale."),
          key(TRIREME_MEMBER(recompute.granularity))
              .by_default("none")
              .warn()
              .help("What the backward pass recomputes instead of keeping: layer norms (selective; "
                    "Megatron-LM's selective recomputes attention, whose scores are never kept "
                    "here) or layers (full)."),
          key(TRIREME_MEMBER(recompute.method))
              .derived("uniform if full", if_full([](Recompute& recompute) {
                         recompute.method = RecomputeMethod::uniform;
                       }))
              .warn()
              .help("Layers to recompute: all, in groups (uniform), or the first of each chunk of "
                    "a stage (block)."),
          key(TRIREME_MEMBER(recompute.layers))
              .derived("1 if full", if_full([](Recompute& recompute) { recompute.layers = 1; }))
              .from(1, kMaxLayers)
              .warn()
              .help("Layers of a group (uniform), or number of recomputed layers (block)."),
          key(TRIREME_MEMBER(recompute.partition))
              .by_default("false")
              .warn()
              .help("Shard the inputs kept for recomputation over the tensor ranks."),
          key(TRIREME_MEMBER(recompute.offload))
              .by_default("false")
              .warn()
              .help("Keep the inputs for recomputation in page-locked host memory."),
          key(TRIREME_MEMBER(recompute.contiguous))
              .by_default("false")
              .warn()
              .help("No effect, accepted for old recipes: the inputs are in one buffer anyway."),
      });
}

}  // namespace trireme::deck
