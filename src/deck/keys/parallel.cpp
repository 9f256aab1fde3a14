// The keys of the layout.
#include "deck/keys/groups.hpp"

namespace trireme::deck {

void parallel_keys(std::vector<Key>& rows) {
  rows.insert(rows.end(),
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
                      .help("Stages that the layers are cut into."),
                  key(TRIREME_MEMBER(parallel.data))
                      .unset_word("auto")
                      .from(1, kMostRanks)
                      .noted()
                      .help("Copies of the model; auto: ranks / (tensor * pipeline)."),
                  key(TRIREME_MEMBER(parallel.partition))
                      .unset_word("auto")
                      .from(0, kMostLayers)
                      .unit("layers")
                      .noted()
                      .help("Layers of each stage, as a list or 0-11-8-8-5-0; auto: equal parts."),
                  key(TRIREME_MEMBER(parallel.schedule))
                      .by_default("1f1b")
                      .noted()
                      .help("Order of forward and backward passes in the pipeline."),
                  key(TRIREME_MEMBER(parallel.interleave))
                      .by_default("1")
                      .from(1, kMostLayers)
                      .noted()
                      .help("Chunks of layers on each stage, for schedule: interleaved."),
                  key(TRIREME_MEMBER(parallel.sequence))
                      .by_default("false")
                      .noted()
                      .help("Between products each tensor rank has a part of the positions; with "
                            "tensor 1 it does nothing."),
                  key(TRIREME_MEMBER(parallel.zero))
                      .by_default("1")
                      .from(0, 3)
                      .noted()
                      .help("ZeRO stage: data ranks share out the optimizer's state (1), gradients "
                            "(2), and weights (3)."),
                  key(TRIREME_MEMBER(parallel.bucket))
                      .by_default("25e6")
                      .from(1, 1e12)
                      .unit("elements")
                      .noted()
                      .help("Gradients that data ranks reduce at a time, of one layer at most."),
                  key(TRIREME_MEMBER(parallel.overlap.gradients))
                      .by_default("true")
                      .help("Reduce gradients while the backward pass runs."),
                  key(TRIREME_MEMBER(parallel.overlap.parameters))
                      .by_default("true")
                      .help("Gather parameters while passes run."),
                  key(TRIREME_MEMBER(parallel.overlap.pipeline))
                      .by_default("true")
                      .help("Send between stages while both compute."),
              });
}

}  // namespace trireme::deck
