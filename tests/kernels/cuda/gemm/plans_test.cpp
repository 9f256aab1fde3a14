#include "kernels/cuda/gemm/plans.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <thread>
#include <vector>

#include "core/files.hpp"

namespace trireme::kernels::cuda {
namespace {

constexpr const char* kMachine = "NVIDIA H200, 132 SMs of 9.0, cuBLASLt 130100";
constexpr Algorithm kAlgorithm = {1, 0xFEDCBA9876543210u, 0, 7, 8, 9, 10, ~std::uint64_t{0}};
constexpr Algorithm kOther = {2, 3, 4, 5, 6, 7, 8, 9};
constexpr GemmProblem kGemm{.m = 16384, .n = 2304, .k = 768, .transpose_b = true, .bias = true};

const auto kAnything = [](const Algorithm&) { return true; };

/// A path without a file, gone with this.
class GemmPlansTest : public ::testing::Test {
 protected:
  GemmPlansTest() { std::filesystem::remove(path_); }
  ~GemmPlansTest() override { std::filesystem::remove(path_); }

  const std::string path_ =
      ::testing::TempDir() + "gemm_plans_" + std::to_string(::getpid()) + ".txt";
  const GemmPlans plans_{path_, kMachine};
};

TEST(GemmPlan, NamesGemmsForPeople) {
  EXPECT_EQ(to_string(kGemm), "16384x2304x768 NT fp32 to fp32 bias align 16 16 16");
  EXPECT_EQ(to_string(GemmProblem{.m = 768,
                                  .n = 3072,
                                  .k = 9,
                                  .transpose_a = true,
                                  .operands = DType::bf16,
                                  .result = DType::f32,
                                  .adds = true,
                                  .alignment_b = 2}),
            "768x3072x9 TN bf16 to fp32 add align 16 2 16");
  GemmProblem fused = kGemm;
  fused.epilogue = Epilogue::gelu;
  EXPECT_EQ(to_string(fused), "16384x2304x768 NT fp32 to fp32 bias gelu align 16 16 16");
  fused.epilogue = Epilogue::gelu_gradient;
  fused.bias = false;
  EXPECT_EQ(to_string(fused), "16384x2304x768 NT fp32 to fp32 gelu-gradient align 16 16 16");
  fused.epilogue = Epilogue::gated;
  EXPECT_EQ(to_string(fused), "16384x2304x768 NT fp32 to fp32 gated align 16 16 16");
  EXPECT_EQ(to_string(GemmProblem{.m = 2304,
                                  .n = 768,
                                  .k = 16384,
                                  .transpose_a = true,
                                  .operands = DType::bf16,
                                  .result = DType::f32,
                                  .adds = true,
                                  .epilogue = Epilogue::bias_gradient}),
            "2304x768x16384 TN bf16 to fp32 add bias-gradient align 16 16 16");
  EXPECT_EQ(to_string(GemmProblem{.m = 2304,
                                  .n = 768,
                                  .k = 16384,
                                  .transpose_b = true,
                                  .operands = DType::float8_e5m2,
                                  .result = DType::bf16,
                                  .operands_b = DType::float8_e4m3,
                                  .blocks_a = ScaleBlocks::vectors,
                                  .blocks_b = ScaleBlocks::squares}),
            "2304x768x16384 NT fp8-e5m2 1x128 x fp8-e4m3 128x128 to bf16 align 16 16 16");
}

TEST(GemmPlan, ALineComesBack) {
  const std::string line = format_plan(kMachine, "a GEMM", kAlgorithm);
  EXPECT_EQ(parse_plan(line, kMachine, "a GEMM"), kAlgorithm);
  EXPECT_EQ(parse_plan(line, kMachine, "a produc"), std::nullopt);
  EXPECT_EQ(parse_plan(line, kMachine, "another"), std::nullopt);
  EXPECT_EQ(parse_plan(line, "another GPU", "a GEMM"), std::nullopt);
}

TEST(GemmPlan, SaysInWordsThatTheSeparateFormWins) {
  const std::string line = format_plan(kMachine, "a GEMM", kSeparate);
  EXPECT_EQ(line, std::string(kMachine) + "\ta GEMM\tseparate");
  EXPECT_EQ(parse_plan(line, kMachine, "a GEMM"), kSeparate);
  EXPECT_EQ(parse_plan(line, kMachine, "another"), std::nullopt);
}

TEST(GemmPlan, DamagedLinesAreNoPlans) {
  for (const Algorithm& algorithm : {kAlgorithm, kSeparate}) {
    const std::string line = format_plan(kMachine, "a GEMM", algorithm);
    for (std::size_t size = 0; size < line.size(); ++size)
      EXPECT_EQ(parse_plan(line.substr(0, size), kMachine, "a GEMM"), std::nullopt) << size;
    EXPECT_EQ(parse_plan(line + "0", kMachine, "a GEMM"), std::nullopt);
  }
  std::string damaged = format_plan(kMachine, "a GEMM", kAlgorithm);
  damaged.back() = 'x';
  EXPECT_EQ(parse_plan(damaged, kMachine, "a GEMM"), std::nullopt);
  damaged.back() = '-';
  EXPECT_EQ(parse_plan(damaged, kMachine, "a GEMM"), std::nullopt);
}

TEST(GemmPlan, AlignmentIsThatOfTheAddress) {
  const auto at = [](std::uintptr_t address) {
    return alignment_of(reinterpret_cast<const void*>(address));
  };
  EXPECT_EQ(at(0), 16u);
  EXPECT_EQ(at(4096), 16u);
  EXPECT_EQ(at(4096 + 16), 16u);
  EXPECT_EQ(at(4096 + 8), 8u);
  EXPECT_EQ(at(4096 + 12), 4u);
  EXPECT_EQ(at(4096 + 2), 2u);
}

TEST_F(GemmPlansTest, WhatOneProcessSettlesAnotherFinds) {
  EXPECT_EQ(plans_.find(kGemm), std::nullopt);
  EXPECT_EQ(plans_.settle(kGemm, kAlgorithm, kAnything), kAlgorithm);
  const GemmPlans another(path_, kMachine);
  EXPECT_EQ(another.find(kGemm), kAlgorithm);
  EXPECT_EQ(another.settle(kGemm, kOther, kAnything), kAlgorithm) << "the first one holds";
  GemmProblem other = kGemm;
  other.alignment_c = 8;
  EXPECT_EQ(another.find(other), std::nullopt);
  EXPECT_EQ(GemmPlans(path_, "another GPU").find(kGemm), std::nullopt);
}

TEST_F(GemmPlansTest, ShippedPlansServeWhereTheFileHasNone) {
  const std::string shipped = format_plan(kMachine, to_string(kGemm), kOther) + '\n';
  const GemmPlans plans(path_, kMachine, shipped);
  EXPECT_EQ(plans.find(kGemm), kOther);
  EXPECT_EQ(GemmPlans("", kMachine, shipped).find(kGemm), kOther);
  EXPECT_EQ(GemmPlans(path_, "another GPU", shipped).find(kGemm), std::nullopt);
  plans_.settle(kGemm, kAlgorithm, kAnything);
  EXPECT_EQ(plans.find(kGemm), kAlgorithm) << "what this machine timed comes first";
}

// A GEMM with an epilogue is another one than the same GEMM without.
TEST_F(GemmPlansTest, TheSeparateFormIsSettledLikeAnAlgorithm) {
  GemmProblem fused = kGemm;
  fused.epilogue = Epilogue::gelu;
  plans_.settle(kGemm, kAlgorithm, kAnything);
  EXPECT_EQ(plans_.find(fused), std::nullopt);
  EXPECT_EQ(plans_.settle(fused, kSeparate, kAnything), kSeparate);
  const GemmPlans another(path_, kMachine);
  EXPECT_EQ(another.settle(fused, kOther, kAnything), kSeparate) << "the first one holds";
  EXPECT_EQ(another.find(fused), kSeparate);
  EXPECT_EQ(another.find(kGemm), kAlgorithm);
}

TEST_F(GemmPlansTest, APlanThatCannotBeUsedIsReplaced) {
  plans_.settle(kGemm, kAlgorithm, kAnything);
  const auto usable = [](const Algorithm& algorithm) { return algorithm != kAlgorithm; };
  EXPECT_EQ(plans_.settle(kGemm, kOther, usable), kOther);
  EXPECT_EQ(plans_.find(kGemm), kOther);
}

TEST_F(GemmPlansTest, DamageCostsOneLine) {
  const GemmPlans elsewhere(path_, "another GPU");
  elsewhere.settle(kGemm, kOther, kAnything);
  plans_.settle(kGemm, kAlgorithm, kAnything);
  const std::string content = read_file(path_);
  // A line cut off in the middle, as by a full disk, then one more.
  write_file_atomically(path_, std::string("\0\xFF junk\n", 8) + content.substr(0, 300));
  EXPECT_EQ(plans_.find(kGemm), std::nullopt);
  EXPECT_EQ(elsewhere.find(kGemm), kOther);
  EXPECT_EQ(plans_.settle(kGemm, kAlgorithm, kAnything), kAlgorithm);
  EXPECT_EQ(plans_.find(kGemm), kAlgorithm);
  EXPECT_EQ(elsewhere.find(kGemm), kOther);
}

TEST_F(GemmPlansTest, ConcurrentProcessesAgree) {
  constexpr int kProcesses = 8, kGemms = 20;
  std::vector<std::vector<Algorithm>> settled(kProcesses);
  {
    std::vector<std::jthread> processes;
    for (std::uint64_t process = 0; process < kProcesses; ++process)
      processes.emplace_back([&, process] {
        const GemmPlans plans(path_, kMachine);
        for (int m = 1; m <= kGemms; ++m)
          settled[process].push_back(plans.settle({.m = m}, {process}, kAnything));
      });
  }
  for (int process = 1; process < kProcesses; ++process)
    EXPECT_EQ(settled[process], settled[0]) << process;
}

TEST(GemmPlan, AFileThatCannotBeIsDoneWithout) {
  for (const char* path : {"", "/nowhere/at/all/plans.txt"}) {
    const GemmPlans plans(path, kMachine);
    EXPECT_EQ(plans.settle(kGemm, kAlgorithm, kAnything), kAlgorithm);
    EXPECT_EQ(plans.find(kGemm), std::nullopt);
  }
}

}  // namespace
}  // namespace trireme::kernels::cuda
