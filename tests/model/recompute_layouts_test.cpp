// Gradients of layers that are computed again against those of layers that are kept, over ranks.
#include <gtest/gtest.h>

#include "ranked_gpt.hpp"

namespace trireme::test {
namespace {

using model::Recompute;
using What = Recompute::What;

/// Trains one batch on `layout`, keeping everything and computing everything again.
void expect_same_bits(const grid::Layout& layout, DType dtype, bool sequence_parallel) {
  SCOPED_TRACE(fmt::format("{} in {}{}", to_string(layout), name_of(dtype),
                           sequence_parallel ? ", the sequence cut" : ""));
  const auto run = [&](const Recompute& recompute) {
    RankedGpt gpt(comm::MpiCommunicator::world(), layout, RankedGpt::schedule_for(layout),
                  {.shard_state = false}, small_gpt(), dtype, sequence_parallel, recompute);
    const double loss = gpt.compute_gradients(/*consumed=*/40);
    return std::pair(loss, gpt.gradients());
  };
  const auto kept = run({});
  EXPECT_EQ(run({What::norms}), kept);
  for (const bool partition : {false, true})
    for (const bool offload : {false, true})
      for (Recompute recompute :
           {Recompute{What::uniform, 1}, Recompute{What::uniform, 3}, Recompute{What::block, 1}}) {
        recompute.partition = partition && layout.tensor > 1 && !sequence_parallel;
        recompute.offload = offload;
        if (recompute.partition != partition) continue;
        EXPECT_EQ(run(recompute), kept)
            << "method " << static_cast<int>(recompute.what) << " of " << recompute.layers
            << " layers" << (partition ? ", shared" : "") << (offload ? ", on the host" : "");
      }
}

TEST(RecomputeLayouts, ChangesNoBitOfLossOrGradient) {
  for (const grid::Layout& layout : layouts_of(comm::MpiCommunicator::world()->size())) {
    expect_same_bits(layout, DType::f32, /*sequence_parallel=*/false);
    expect_same_bits(layout, DType::bf16, /*sequence_parallel=*/false);
    if (layout.tensor > 1) expect_same_bits(layout, DType::f32, /*sequence_parallel=*/true);
  }
}

}  // namespace
}  // namespace trireme::test
