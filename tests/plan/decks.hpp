// Decks of these tests, GPT-2's shape changed by overrides and its plan, and a cluster.
#pragma once

#include <string>
#include <vector>

#include "deck/load.hpp"
#include "plan/cluster/cluster.hpp"
#include "plan/run_plan.hpp"

namespace trireme::plan {

/// GPT-2 124M without data, its layout fitted to `ranks`.
inline deck::Deck gpt2_deck(const std::vector<std::string>& overrides = {},
                            std::int64_t ranks = 1) {
  deck::Deck deck = deck::parse(
      "model: {layers: 12, hidden: 768, heads: 12, sequence: 1024, vocab: 50257}\n"
      "batch: {micro: 4, global: 64}\n"
      "schedule: {peak: 6e-4, warmup: 100, decay: 1000}\n"
      "train: {iterations: 1000}\n",
      "gpt2.yaml", overrides, {.need_data = false});
  deck::resolve_world_size(deck, ranks);
  return deck;
}

/// Two nodes with two GPUs of `memory` bytes each.
inline Cluster four_gpus(double memory) {
  Cluster cluster{.name = "four"};
  GpuKind gpu{.name = "g", .memory = memory, .bandwidth = 1e12};
  gpu.peak[static_cast<int>(deck::Compute::bf16)] = 3e14;
  cluster.nodes = {{.gpu = gpu, .count = 2, .gpus = 2, .link = 100e9, .network = 10e9, .price = 3}};
  return cluster;
}

inline constexpr std::int64_t kGpt2Vocab = 50257;
inline constexpr std::int64_t kPadded = 50304;  // the next multiple of 128
inline constexpr std::int64_t kHidden = 768;

/// The plan of gpt2.yaml on `ranks` ranks.
inline RunPlan plan_gpt2(const std::vector<std::string>& overrides = {}, std::int64_t ranks = 1) {
  return plan_run(gpt2_deck(overrides, ranks), kGpt2Vocab);
}

}  // namespace trireme::plan
