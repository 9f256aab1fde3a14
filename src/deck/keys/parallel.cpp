// The keys of the layout.
#include "deck/keys/groups.hpp"

namespace trireme::deck {

void parallel_keys(std::vector<Key>& rows) {
  rows.insert(
      rows.end(),
      {
          key(TRIREME_MEMBER(parallel.tensor))
              .by_default("1")
              .from(1, kMostRanks)
              .noted()
              .help("Ranks that share each layer; divides model.heads and model.ffn."),
          key(TRIREME_MEMBER(parallel.pipeline))
              .by_default("1")
              .from(1, kMostRanks)
              .noted()
              .help("Pipeline stages."),
          key(TRIREME_MEMBER(parallel.data))
              .unset_word("auto")
              .from(1, kMostRanks)
              .noted()
              .help("Data-parallel copies of the model; auto: ranks / (tensor * pipeline)."),
          key(TRIREME_MEMBER(parallel.partition))
              .unset_word("auto")
              .from(0, kMostLayers)
              .unit("layers")
              .noted()
              .help("Layers per stage, as a list or 0-11-8-8-5-0; auto: equal numbers."),
          key(TRIREME_MEMBER(parallel.schedule))
              .by_default("1f1b")
              .noted()
              .help("Order of forward and backward passes in the pipeline."),
          key(TRIREME_MEMBER(parallel.interleave))
              .by_default("1")
              .from(1, kMostLayers)
              .noted()
              .help("Chunks of layers (virtual stages) per stage, for schedule: interleaved."),
          key(TRIREME_MEMBER(parallel.sequence))
              .by_default("false")
              .noted()
              .help("Sequence parallelism: split layer norms and dropout along the sequence over "
                    "the tensor ranks; no effect with tensor 1."),
          key(TRIREME_MEMBER(parallel.zero))
              .by_default("1")
              .from(0, 3)
              .noted()
              .help("ZeRO stage: shard optimizer state (1), gradients (2) and weights (3) over the "
                    "data ranks."),
          key(TRIREME_MEMBER(parallel.bucket))
              .by_default("25e6")
              .from(1, 1e12)
              .unit("elements")
              .noted()
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

}  // namespace trireme::deck
