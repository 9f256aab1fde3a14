#include "model/stage/stage_memory.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "model/families/registry.hpp"

namespace trireme::model {
namespace {

TEST(Documents, BeginAfterTheEndOfThePreviousOne) {
  constexpr std::int32_t kEod = 9;
  // Two samples, side by side: 9 1 2 9 9 3 and 1 2 3 4 5 9.
  const std::vector<std::int32_t> ids = {9, 1, 1, 2, 2, 3, 9, 4, 9, 5, 3, 9};
  std::vector<std::int32_t> starts(12), positions(12);
  find_document_starts(ids, 2, kEod, starts);
  EXPECT_EQ(starts, (std::vector<std::int32_t>{0, 1, 1, 1, 4, 5, 0, 0, 0, 0, 0, 0}));
  positions_in_documents(starts, 2, positions);
  EXPECT_EQ(positions, (std::vector<std::int32_t>{0, 0, 0, 1, 1, 2, 2, 3, 0, 4, 0, 5}));
}

// BERT's bias of the output is as wide as the vocabulary. The gradients of both ranks' halves fit a
// GPU's workspace, and twice as many without the other rank.
TEST(KernelWorkspace, HoldsTheSumsOfTheOutputsBias) {
  constexpr std::int64_t kVocab = 501'153;  // of LaBSE
  StageConfig config{.spec = bert_spec(BertConfig{
                         .layers = 1, .hidden = 64, .heads = 1, .sequence = 16, .vocab = kVocab})};
  EXPECT_GE(kernel_workspace_bytes(config), device::linear_workspace(kVocab));
  EXPECT_GT(device::linear_workspace(kVocab), device::linear_workspace(64));
  config.tensor_ranks = 2;
  EXPECT_LT(kernel_workspace_bytes(config), device::linear_workspace(kVocab));
}

}  // namespace
}  // namespace trireme::model
