#include "plan/remedies.hpp"

#include <gtest/gtest.h>

#include "decks.hpp"

namespace trireme::plan {
namespace {

constexpr std::int64_t kVocab = 50257;
using Overrides = std::vector<std::string>;

/// What fits where a run of these `words` needs one byte more than with `change`.
std::vector<Remedy> found(const Overrides& words, const Overrides& change, std::int64_t ranks) {
  Overrides changed = words;
  changed.insert(changed.end(), change.begin(), change.end());
  return remedies(gpt2_deck(words, ranks), kVocab, needed_bytes(gpt2_deck(changed, ranks), kVocab));
}

std::vector<Overrides> overrides_of(const std::vector<Remedy>& remedies) {
  std::vector<Overrides> all;
  for (const Remedy& remedy : remedies) all.push_back(remedy.overrides);
  return all;
}

// GPT-2 on two GPUs, each with all moments.
const Overrides kCuda = {"run.device=cuda", "parallel.zero=0"};
const Overrides kZero = {"parallel.zero=1"}, kSelective = {"recompute.granularity=selective"},
                kFull = {"recompute.granularity=full"};
const Overrides kOffload = {"recompute.granularity=full", "recompute.offload=true"};

TEST(Remedies, TheMildestOfEachKindThatFits) {
  const auto little = found(kCuda, kSelective, 2);
  EXPECT_EQ(overrides_of(little), (std::vector<Overrides>{kSelective, kZero, {"batch.micro=2"}}));
  EXPECT_EQ(
      little[0].bytes,
      needed_bytes(
          gpt2_deck({"run.device=cuda", "parallel.zero=0", "recompute.granularity=selective"}, 2),
          kVocab));
  // Sharing moments alone is not enough; a small batch has little to compute again.
  const Overrides smallest = {"batch.micro=1"};
  EXPECT_EQ(overrides_of(found(kCuda, kFull, 2)), (std::vector<Overrides>{kFull, smallest}));
  EXPECT_EQ(overrides_of(found(kCuda, kOffload, 2)), (std::vector<Overrides>{kOffload, smallest}));
  EXPECT_EQ(overrides_of(found(kCuda, smallest, 2)), (std::vector<Overrides>{smallest}));
}

TEST(Remedies, WhatTheDeckForbidsIsLeftOut) {
  Overrides words = kCuda;
  words.insert(words.end(), {"parallel.pipeline=2", "parallel.schedule=zero-bubble"});
  EXPECT_EQ(overrides_of(found(words, {"batch.micro=1"}, 2)),
            (std::vector<Overrides>{{"batch.micro=1"}}));
  // One data rank has nobody to share moments with, and one sample cannot be halved.
  EXPECT_EQ(overrides_of(found({"run.device=cuda", "batch.micro=1"}, kFull, 1)),
            (std::vector<Overrides>{kFull}));
}

TEST(Remedies, TensorRanksShareBeforeTheHostHelps) {
  const Overrides words = {"run.device=cuda", "parallel.tensor=2", "recompute.granularity=full"};
  const Overrides partition = {"recompute.partition=true"}, offload = {"recompute.offload=true"};
  EXPECT_EQ(overrides_of(found(words, partition, 2)).front(), partition);
  EXPECT_EQ(overrides_of(found(words, offload, 2)).front(), offload);
}

TEST(Remedies, AllTogetherIfNoneSuffices) {
  const Overrides all = {"recompute.granularity=full", "recompute.offload=true", "parallel.zero=3"};
  EXPECT_EQ(overrides_of(found(kCuda, all, 2)), (std::vector<Overrides>{all}));
  Overrides smaller = all;
  smaller.push_back("batch.micro=1");
  EXPECT_EQ(overrides_of(found(kCuda, smaller, 2)), (std::vector<Overrides>{smaller}));
  EXPECT_TRUE(remedies(gpt2_deck(kCuda, 2), kVocab, 1000).empty());
}

TEST(Remedies, InWords) {
  EXPECT_EQ(to_text(std::vector<Remedy>{}),
            "neither recomputation, parallel.zero nor a smaller batch.micro makes it fit; cut the "
            "model over more ranks (parallel.tensor, parallel.pipeline)");
  EXPECT_EQ(to_text({{kFull, 3ul << 30}}), "recompute.granularity=full (3.0 GiB) would fit");
  EXPECT_EQ(to_text({{kOffload, 1ul << 30}, {kZero, 2ul << 30}, {{"batch.micro=2"}, 3ul << 30}}),
            "recompute.granularity=full recompute.offload=true (1.0 GiB), parallel.zero=1 (2.0 "
            "GiB) or batch.micro=2 (3.0 GiB) would fit");
}

}  // namespace
}  // namespace trireme::plan
