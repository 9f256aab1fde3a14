// Planned memory of GPUs and of each precision.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "decks.hpp"
#include "plan/run_plan.hpp"

namespace trireme::plan {
namespace {

TEST(MemoryPlan, OnGpusWeightsAreHalvesWithAMasterCopy) {
  const MemoryPlan host = plan_gpt2().stages[0].memory;
  const MemoryPlan gpu = plan_gpt2({"run.device=cuda"}).stages[0].memory;
  EXPECT_EQ(2 * gpu.weights, host.weights);
  EXPECT_EQ(gpu.gradients, host.gradients);
  EXPECT_EQ(2 * gpu.optimizer, 3 * host.optimizer);
  EXPECT_LT(gpu.activations, 6 * host.activations / 10);
  EXPECT_GT(gpu.libraries, host.libraries);
  // NCCL is not needed by one rank, and takes memory for every axis.
  const auto libraries = [](const std::vector<std::string>& words, std::int64_t ranks) {
    std::vector<std::string> all = words;
    all.push_back("run.device=cuda");
    return plan_gpt2(all, ranks).stages[0].memory.libraries;
  };
  EXPECT_LT(gpu.libraries, libraries({}, 2));
  EXPECT_LT(libraries({}, 2), libraries({"parallel.tensor=2"}, 4));
  EXPECT_LT(
      libraries({"parallel.pipeline=2"}, 2),
      libraries({"parallel.pipeline=2", "parallel.schedule=interleaved", "parallel.interleave=2"},
                2));
}

TEST(MemoryPlan, CuttingTheSequenceHalvesTheStream) {
  const std::vector<std::string> words = {"parallel.tensor=2", "parallel.pipeline=2"};
  std::vector<std::string> cut_words = words;
  cut_words.push_back("parallel.sequence=true");
  const MemoryPlan whole = plan_gpt2(words, 4).stages[0].memory;
  const MemoryPlan cut = plan_gpt2(cut_words, 4).stages[0].memory;
  const std::size_t reduction = std::size_t{2} << 20;  // of the tied embedding, by chunks
  EXPECT_EQ(2 * (cut.communication - reduction), whole.communication - reduction);
  // The MLP's output, which otherwise lies where the attention's does.
  EXPECT_EQ(cut.workspace, whole.workspace + std::size_t{4 * 4 * 1024} * kHidden);
  // Of each of two micro-batches: the stage's input, and of each of six layers the stream after
  // attention and after the MLP, with two means and two reciprocal deviations of each token.
  const std::size_t halved = 2 * 4 * 4 * 1024 * (kHidden * (1 + 6 * 2) + 6 * 4);
  EXPECT_EQ(whole.activations - cut.activations, halved / 2);
  const MemoryPlan serial = plan_gpt2().stages[0].memory;
  EXPECT_EQ(plan_gpt2({"parallel.sequence=true"}).stages[0].memory.total(), serial.total());
}

TEST(MemoryPlan, Fp32EmbeddingsAreSummedOnTheFirstStage) {
  const auto workspace = [](const char* compute, const char* embedding, int stage) {
    return plan_gpt2({"parallel.zero=0", "parallel.pipeline=2", "batch.global=32",
                      std::string("precision.compute=") + compute,
                      std::string("precision.embedding=") + embedding},
                     2)
        .stages[stage]
        .memory.workspace;
  };
  EXPECT_EQ(workspace("bf16", "fp32", 0), workspace("bf16", "same", 0) + 4 * 4 * 1024 * kHidden);
  EXPECT_EQ(workspace("bf16", "fp32", 1), workspace("bf16", "same", 1));
  EXPECT_EQ(workspace("fp32", "fp32", 0), workspace("fp32", "same", 0));
}

TEST(MemoryPlan, HalfTypesOnTheHostNeedCopiesToComputeWith) {
  const MemoryPlan fp32 = plan_gpt2().stages[0].memory;
  const MemoryPlan fp16 = plan_gpt2({"precision.compute=fp16"}).stages[0].memory;
  EXPECT_EQ(2 * fp16.weights, fp32.weights);
  EXPECT_EQ(fp16.gradients, fp32.gradients);
  // The head's GEMM of 4 * 1024 tokens: its input, the embedding and the logits.
  const std::int64_t T = 4 * 1024, V = 50257;
  EXPECT_GT(fp16.workspace, 4u * (T * kHidden + V * kHidden + T * V));
}

TEST(MemoryPlan, Fp8GemmsTakeCopiesOfWeightsAndInputs) {
  const std::vector<std::string> gpu = {"run.device=cuda"};
  const auto plan = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"run.device=cuda", "precision.gemm=fp8"});
    return plan_gpt2(more).stages[0].memory;
  };
  const MemoryPlan bf16 = plan_gpt2(gpu).stages[0].memory, fp8 = plan({});
  const auto near = [](std::size_t bytes, std::int64_t elements) {
    const auto wanted = static_cast<std::size_t>(elements);
    return bytes >= wanted && bytes < wanted + wanted / 1000;
  };
  const std::int64_t h = kHidden, T = 4 * 1024;
  EXPECT_TRUE(near(fp8.weights - bf16.weights, 2 * 12 * 12 * h * h));  // W and W^T
  // x^T of each linear; the outputs of the GELU and of the norms, but for one, are not kept.
  EXPECT_TRUE(near(fp8.activations + 12 * 12 * T * h - bf16.activations, (12 * 7 + 2) * T * h));
  EXPECT_TRUE(near(fp8.workspace - bf16.workspace, 2 * 4 * T * h));  // dy and dy^T
  EXPECT_EQ(fp8.optimizer, bf16.optimizer);
  // With sharded weights there are copies of one layer alone; layers left out have none.
  const MemoryPlan sharded = plan({"parallel.zero=3"});
  const MemoryPlan sharded_bf16 =
      plan_gpt2({"run.device=cuda", "parallel.zero=3"}).stages[0].memory;
  EXPECT_TRUE(near(sharded.weights - sharded_bf16.weights, 2 * 12 * h * h));
  EXPECT_TRUE(
      near(plan({"precision.fp8.first_layers=2"}).weights - bf16.weights, 2 * 10 * 12 * h * h));
}

TEST(MemoryPlan, BlocksOfFp8TakeAScaleEach) {
  const auto plan = [&](const std::string& recipe) {
    return plan_gpt2({"run.device=cuda", "precision.gemm=fp8", "precision.fp8.recipe=" + recipe})
        .stages[0]
        .memory;
  };
  const MemoryPlan tensor = plan("tensor"), block = plan("block");
  const auto grown = [](std::size_t from, std::size_t to, std::int64_t scales) {
    const auto bytes = static_cast<double>(to - from), wanted = 4.0 * static_cast<double>(scales);
    return bytes > 0.9 * wanted && bytes < 1.3 * wanted;  // buffers are aligned
  };
  const std::int64_t h = kHidden, T = 4 * 1024;
  // Squares of W and W^T of qkv, projection and the MLP, of which rows of 6 and 18 are padded to 8
  // and 20; vectors of inputs; of an operand and of the transposed gradient.
  EXPECT_TRUE(grown(tensor.weights, block.weights,
                    12 * (18 * 8 + 6 * 20 + 2 * 6 * 8 + 2 * (24 * 8 + 6 * 24))));
  EXPECT_TRUE(grown(tensor.activations, block.activations, 12 * 7 * T * h / 128));
  EXPECT_TRUE(grown(tensor.workspace, block.workspace, 2 * 4 * T * h / 128));
}

TEST(MemoryPlan, SaysWhichGemmsAreInFp8) {
  EXPECT_EQ(plan_gpt2().fp8, "");
  EXPECT_EQ(
      plan_gpt2({"precision.gemm=fp8", "precision.fp8.last_layers=1", "model.hidden=1536"}).fp8,
      "11 of 12 layers' GEMMs (fp8-e4m3 x fp8-e5m2, one scale a tensor)");
  const std::vector<std::string> block = {"precision.gemm=fp8", "precision.fp8.recipe=block",
                                          "model.hidden=1536", "model.heads=24",
                                          "parallel.tensor=8"};
  EXPECT_EQ(plan_gpt2(block, 8).fp8,
            "12 of 12 layers' GEMMs (fp8-e4m3 x fp8-e5m2, one scale for each block of 128 x 128 or "
            "1 x 128); 24 of their 48 linears stay in fp32, since tokens of a micro-batch, inputs "
            "or outputs of a tensor rank are no multiples of 16, or those that parallel.tensor = 8 "
            "shards no multiples of 128");
  const std::string text = to_text(plan_gpt2({"precision.gemm=fp8", "model.ffn=1000"}));
  EXPECT_NE(text.find("FP8        12 of 12 layers' GEMMs"), std::string::npos) << text;
  EXPECT_NE(text.find("24 of their 48 linears stay in fp32"), std::string::npos) << text;
  EXPECT_NE(text.find("with model.hidden = 768 conversions cost"), std::string::npos) << text;
}

TEST(MemoryPlan, CopyEnginesExchangeShardsOnOneNode) {
  const auto memory = [](int node_ranks, const std::vector<std::string>& words) {
    std::vector<std::string> all = {"run.device=cuda", "batch.global=8"};
    all.insert(all.end(), words.begin(), words.end());
    return plan_run(gpt2_deck(all, 2), kGpt2Vocab, node_ranks).largest().memory;
  };
  const MemoryPlan copies = memory(2, {"parallel.zero=1"}), nccl = memory(1, {"parallel.zero=1"});
  EXPECT_EQ(copies.communication - nccl.communication, 32u << 20) << "staging";
  EXPECT_EQ(nccl.libraries - copies.libraries, 430u << 20) << "an idle NCCL takes less";
  EXPECT_EQ(memory(2, {"parallel.zero=0"}).total(), memory(1, {"parallel.zero=0"}).total());
  // Muon gathers matrices from their shards through NCCL.
  const std::vector<std::string> muon = {"parallel.zero=1", "optimizer.type=muon"};
  EXPECT_EQ(memory(2, muon).libraries, nccl.libraries);
}

}  // namespace
}  // namespace trireme::plan
