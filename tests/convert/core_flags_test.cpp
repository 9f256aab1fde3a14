// Flags of today's Megatron-Core: networks of Llama's kind, schedules, FSDP, layouts.
#include <gmock/gmock.h>

#include <sstream>

#include "convert/convert.hpp"
#include "core/error.hpp"
#include "core/files.hpp"
#include "deck/load.hpp"
#include "fixture.hpp"

namespace trireme::convert::flags {
namespace {

using testing::HasSubstr;
using testing::Not;

/// A command line of 4 layers and 4 heads of 16, in batches of 8, with `more`.
Request core_request(const std::string& more, const std::string& launcher = "python") {
  std::istringstream text(launcher +
                          " pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads "
                          "4 --seq-length 32 --max-position-embeddings 32 --micro-batch-size 1 "
                          "--global-batch-size 8 --lr 1e-3 --min-lr 1e-4 --train-iters 100 "
                          "--data-path d --tokenizer-type NullTokenizer --vocab-size 100 " +
                          more);
  Request request;
  for (std::string word; text >> word;) request.words.push_back(word);
  return request;
}

std::string core_deck(const std::string& more, const std::string& launcher = "python") {
  return convert(core_request(more, launcher)).deck;
}

const std::string kLlama =
    "--normalization RMSNorm --position-embedding-type rope --swiglu --disable-bias-linear ";

deck::Deck parsed(const std::string& more) {
  return deck::parse(core_deck(more), "converted", {},
                     {.need_data = false, .automatic = deck::Device::cuda});
}

TEST(CoreFlags, LlamaWithTheDefaultsOfMegatron) {
  const deck::Model model = parsed(kLlama).model;
  EXPECT_EQ(model.family, deck::Family::llama);
  EXPECT_EQ(model.ffn, 128);  // int(4 * 64 * 2 / 3 / 64) * 64
  EXPECT_EQ(model.kv_heads, 4);
  EXPECT_EQ(model.head_dim, 16);
  EXPECT_EQ(model.dropout.attention, 0.1);
  EXPECT_EQ(model.dropout.hidden, 0.1);
  EXPECT_TRUE(model.tie_embeddings);
  EXPECT_EQ(model.position.theta, 10000);
  EXPECT_EQ(model.position.scaling, deck::PositionScaling::none);
  EXPECT_EQ(model.qk_norm, deck::QkNorm::none);
  EXPECT_EQ(model.bias, deck::LinearBias::none);
  EXPECT_EQ(model.window, std::nullopt);
}

TEST(CoreFlags, LlamaWithEverything) {
  const deck::Model model =
      parsed(kLlama +
             "--ffn-hidden-size 96 --group-query-attention --num-query-groups 2 --kv-channels 32 "
             "--qk-layernorm --add-qkv-bias --rotary-base 500000 --use-rope-scaling "
             "--rope-scaling-factor 32 --window-size 7,0 --untie-embeddings-and-output-weights "
             "--attention-dropout 0 --hidden-dropout 0 --norm-epsilon 1e-6 --rotary-percent 1.0 "
             "--apply-layernorm-1p --calculate-per-token-loss --softmax-type vanilla")
          .model;
  EXPECT_EQ(model.ffn, 96);
  EXPECT_EQ(model.kv_heads, 2);
  EXPECT_EQ(model.head_dim, 32);
  EXPECT_EQ(model.qk_norm, deck::QkNorm::head);
  EXPECT_EQ(model.bias, deck::LinearBias::qkv);
  EXPECT_EQ(model.position.theta, 500000);
  EXPECT_EQ(model.position.scaling, deck::PositionScaling::llama3);
  EXPECT_EQ(model.position.factor, 32);
  EXPECT_EQ(model.position.original, 8192);
  EXPECT_EQ(model.window, 8);
  EXPECT_FALSE(model.tie_embeddings);
  EXPECT_EQ(model.layernorm_eps, 1e-6);
  const deck::Position linear =
      parsed(kLlama + "--rotary-seq-len-interpolation-factor 4").model.position;
  EXPECT_EQ(linear.scaling, deck::PositionScaling::linear);
  EXPECT_EQ(linear.factor, 4);
}

TEST(CoreFlags, NetworksBetweenTheTwoKindsAreRefused) {
  const auto error = [](const std::string& more) { return errors_of(core_request(more)); };
  EXPECT_THAT(error("--group-query-attention --num-query-groups 2"),
              HasSubstr("--group-query-attention: Trireme has GPT-2's network"));
  EXPECT_THAT(error("--normalization RMSNorm --use-rotary-position-embeddings --swiglu"),
              HasSubstr("for which the recipe lacks --disable-bias-linear\n"));
  EXPECT_THAT(error(kLlama + "--rotary-percent 0.5"), HasSubstr("Trireme rotates whole heads"));
  EXPECT_THAT(error(kLlama + "--rotary-interleaved"), HasSubstr("two halves of a head"));
  EXPECT_THAT(error(kLlama + "--window-size 7,7"), HasSubstr("such as 127,0"));
  EXPECT_THAT(error(kLlama + "--window-size x,0"), HasSubstr("such as 127,0"));
  EXPECT_THAT(error(kLlama + "--window-size 7,0 --window-attn-skip-freq 2"),
              HasSubstr("all layers have the window"));
  EXPECT_THAT(error(kLlama + "--use-rope-scaling --rotary-seq-len-interpolation-factor 2"),
              HasSubstr("keep one of the two"));
  EXPECT_THAT(error(kLlama + "--num-query-groups 3 --group-query-attention"),
              HasSubstr("model.kv_heads = 3 does not divide model.heads = 4"));
  EXPECT_THAT(error("--multi-latent-attention --kv-lora-rank 32"),
              HasSubstr("--multi-latent-attention: Trireme's networks are GPT-2"));
  EXPECT_THAT(error("--calculate-per-token-loss --eod-mask-loss"),
              HasSubstr("averages the loss over micro-batches"));
  // What only Llama uses is left out of GPT-2's deck.
  EXPECT_THAT(core_deck("--rotary-base 10000 --rotary-percent 1.0 --num-query-groups 1"),
              HasSubstr("--rotary-base 10000: has no effect without rotary positions"));
}

TEST(CoreFlags, WarmupStableDecay) {
  const std::string deck = core_deck("--lr-decay-style WSD --lr-wsd-decay-iters 20");
  EXPECT_THAT(deck, HasSubstr("  type: wsd "));
  EXPECT_THAT(deck, HasSubstr("    decay: 20 iterations "));
  EXPECT_THAT(deck, HasSubstr("    shape: exponential "));
  EXPECT_THAT(
      core_deck("--lr-decay-style WSD --lr-wsd-decay-iters 20 --lr-wsd-decay-style minus_sqrt"),
      HasSubstr("    shape: minus-sqrt "));
  EXPECT_THAT(errors_of(core_request("--lr-decay-style WSD")),
              HasSubstr("needs --lr-wsd-decay-iters"));
  EXPECT_THAT(core_deck("--lr-decay-style cosine --lr-wsd-decay-style linear"),
              HasSubstr("has no effect without --lr-decay-style WSD"));
}

TEST(CoreFlags, RatesOfEmbeddingsAndMuon) {
  const std::string deck = core_deck("--decoupled-lr 2e-3 --decoupled-min-lr 2e-4");
  EXPECT_THAT(deck, HasSubstr("    embedding: 2 "));
  EXPECT_THAT(deck, Not(HasSubstr("    head: ")));
  EXPECT_THAT(errors_of(core_request("--decoupled-lr 2e-3 --decoupled-min-lr 1e-4")),
              HasSubstr("one factor applies to the whole schedule"));
  const std::string muon = core_deck(
      "--optimizer dist_muon --muon-scale-mode spectral --muon-extra-scale-factor 0.2 "
      "--muon-use-nesterov --muon-momentum 0.95 --muon-tp-mode duplicated");
  for (const char* text :
       {"  type: muon ", "  momentum: 0.95 ", "    scale: match-rms ", "    nesterov: true "})
    EXPECT_THAT(muon, HasSubstr(text));
  EXPECT_THAT(errors_of(core_request("--optimizer muon")),
              HasSubstr("optimizer.muon.scale has sqrt(max(m, n)) with the factor 0.2"));
  EXPECT_THAT(core_deck("--use-mup --mup-base-hidden-size 32 --mup-embedding-mult 10"),
              testing::AllOf(HasSubstr("    base: 32 "), HasSubstr("    embedding: 10 ")));
}

TEST(CoreFlags, ShardingOfData) {
  EXPECT_THAT(core_deck("--use-megatron-fsdp --use-distributed-optimizer "
                        "--data-parallel-sharding-strategy optim_grads"),
              HasSubstr("  zero: 2 "));
  EXPECT_THAT(core_deck("--use-torch-fsdp2"), HasSubstr("  zero: 3 "));
  EXPECT_THAT(core_deck("--data-parallel-sharding-strategy no_shard --use-distributed-optimizer"),
              HasSubstr("  zero: 1 "));
  EXPECT_THAT(errors_of(core_request("--use-megatron-fsdp")),
              HasSubstr("expected --data-parallel-sharding-strategy no_shard"));
  EXPECT_THAT(errors_of(core_request("--num-distributed-optimizer-instances 2")),
              HasSubstr("Trireme has one data group"));
}

TEST(CoreFlags, StagesOfUnequalLength) {
  const std::string ranks = "torchrun --nproc_per_node 2";
  EXPECT_THAT(core_deck("--pipeline-model-parallel-size 2 --num-layers 6 "
                        "--account-for-embedding-in-pipeline-split "
                        "--account-for-loss-in-pipeline-split",
                        ranks),
              HasSubstr("  partition: 3-3 "));
  EXPECT_THAT(
      core_deck("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et|t*3L", ranks),
      HasSubstr("  partition: 1-3 "));
  EXPECT_THAT(
      core_deck("--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout E(t|)*2,tt|L",
                "torchrun --nproc_per_node 4"),
      HasSubstr("  partition: 1-1-2-0 "));
  for (const char* layout : {"Ett", "Et|t)*2", "Et|t*0|", "Et|q", "(((((t|)*99999)*99999)*99999"})
    EXPECT_THAT(errors_of(core_request(std::string("--pipeline-model-parallel-size 2 "
                                                   "--pipeline-model-parallel-layout ") +
                                           layout,
                                       ranks)),
                HasSubstr("expected the layers of 2 stages"))
        << layout;
}

TEST(CoreFlags, LocalCheckpointsAndTokenizersOfHuggingFace) {
  const std::string deck = core_deck(
      "--save s --save-interval 100 --non-persistent-save-interval 10 --non-persistent-ckpt-type "
      "local --non-persistent-local-ckpt-dir /nvme/x --replication --replication-factor 2 "
      "--async-save --ckpt-format torch_dist --ckpt-fully-parallel-load");
  for (const char* text :
       {"    path: /nvme/x ", "    every: 10 iterations ", "    partner: true ", "  async: true "})
    EXPECT_THAT(deck, HasSubstr(text));
  EXPECT_THAT(errors_of(core_request("--save s --save-interval 100 --non-persistent-save-interval "
                                     "10 --non-persistent-ckpt-type global")),
              HasSubstr("Trireme's are local"));
  const Result result =
      convert(core_request("--tokenizer-type HuggingFaceTokenizer --tokenizer-model models/llama"));
  EXPECT_THAT(result.deck, HasSubstr("    type: bpe "));
  EXPECT_THAT(result.deck, HasSubstr("    model: models/llama/tokenizer.json "));
  EXPECT_THAT(result.notes.back(), HasSubstr("which must be at that path"));
}

TEST(CoreFlags, FlagsByTheirBeginning) {
  const std::string deck = core_deck(
      "--moe-router-fusion --moe-new-thing 3 4 --tp-comm-overlap-cfg f --tp-comm-bootstrap-backend "
      "nccl --inprocess-restart");
  for (const char* text : {"--moe-router-fusion: is for a mixture of experts",
                           "--moe-new-thing 3 4: is for a mixture of experts",
                           "--tp-comm-overlap-cfg f: communication", "--tp-comm-bootstrap-backend"})
    EXPECT_THAT(deck, HasSubstr(text));
  EXPECT_THAT(errors_of(core_request("--mamba-state-dim 128")),
              HasSubstr("--mamba-state-dim 128: Trireme's networks are"));
  // A group has no name of its own.
  EXPECT_THAT(errors_of(core_request("--moe-")), HasSubstr("unknown flag '--moe-'"));
}

}  // namespace
}  // namespace trireme::convert::flags
