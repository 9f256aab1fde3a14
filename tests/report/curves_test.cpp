#include "report/run_files.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace trireme::report {
namespace {

StartEvent start() {
  return {.layout = {.tensor = 2, .pipeline = 1, .data = 4},
          .parameters = 3'000'000,
          .model = {.layers = 2,
                    .hidden = 64,
                    .sequence = 128,
                    .vocab = 1000,
                    .parameters_without_embeddings = 2'000'000},
          .iteration = 20};
}

TrainEvent train() {
  return {.iteration = 30,
          .consumed_samples = 480,
          .consumed_tokens = 61440,
          .loss = 2.5,
          .grad_norm = 1.25,
          .learning_rate = 1e-3,
          .loss_scale = 4,
          .global_batch = 16,
          .ms = 500,
          .tokens_per_second = 4096};
}

TrainEvent train_with_norms() {
  TrainEvent event = train();
  event.parameter_norm = 20;
  event.gradient_zeros = 7;
  return event;
}

EvalEvent eval(const char* split) {
  return {.iteration = 30,
          .consumed_samples = 480,
          .consumed_tokens = 61440,
          .split = split,
          .loss = 0};
}

const TimersEvent kTimers{.iteration = 30,
                          .timers = {{.name = "forward-compute", .min_ms = 100, .max_ms = 250}}};

/// What a model with a sentence head reports.
TrainEvent train_with_sentences() {
  TrainEvent event = train();
  event.sentence_loss = 0.5;
  return event;
}

EvalEvent eval_with_sentences() {
  EvalEvent event = eval("valid");
  event.sentence_loss = 0;
  event.sentence_accuracy = 0.75;
  return event;
}

std::vector<Point> sorted(std::vector<Point> points) {
  std::sort(points.begin(), points.end(),
            [](const Point& a, const Point& b) { return a.tag < b.tag; });
  return points;
}

/// "lm loss vs samples @ 480 = 2.5", sorted, for messages that show what differs.
std::vector<std::string> lines(const std::vector<Point>& points) {
  std::vector<std::string> text;
  for (const auto& [tag, x, y] : sorted(points))
    text.push_back(fmt::format("{} @ {} = {:.6g}", tag, x, y));
  return text;
}

using Lines = std::vector<std::string>;

TEST(TriremeCurves, StandOverTheIteration) {
  const auto curves = make_curves(deck::TensorboardDialect::trireme);
  EXPECT_TRUE(curves->of(start()).empty());
  for (const Point& point : curves->of(train_with_norms())) EXPECT_EQ(point.x, 30) << point.tag;
  EXPECT_EQ(curves->of(train_with_norms()).size(), curves->of(train()).size() + 2);
  EXPECT_EQ(lines(curves->of(eval("test"))),
            (Lines{"test/loss @ 30 = 0", "test/perplexity @ 30 = 1"}));
  EXPECT_EQ(lines(curves->of(kTimers)), Lines{"timers/forward-compute_ms @ 30 = 250"});
}

TEST(AllCurves, HaveTheSentenceLoss) {
  const auto has = [](const std::vector<Point>& points, const std::string& line) {
    const Lines all = lines(points);
    EXPECT_TRUE(std::find(all.begin(), all.end(), line) != all.end()) << line;
  };
  const auto trireme = make_curves(deck::TensorboardDialect::trireme);
  has(trireme->of(train_with_sentences()), "train/sentence_loss @ 30 = 0.5");
  has(trireme->of(eval_with_sentences()), "valid/sentence_loss @ 30 = 0");
  has(trireme->of(eval_with_sentences()), "valid/sentence_accuracy @ 30 = 0.75");
  const auto megatron = make_curves(deck::TensorboardDialect::megatron);
  megatron->of(start());
  has(megatron->of(train_with_sentences()), "sop loss @ 30 = 0.5");
  has(megatron->of(train_with_sentences()), "sop loss vs samples @ 480 = 0.5");
  has(megatron->of(eval_with_sentences()), "sop loss validation @ 30 = 0");
  has(megatron->of(eval_with_sentences()), "sop loss validation ppl vs samples @ 480 = 1");
  const auto bigscience = make_curves(deck::TensorboardDialect::bigscience);
  bigscience->of(start());
  has(bigscience->of(train_with_sentences()), "lm-loss-training/sop loss vs tokens @ 61440 = 0.5");
  has(bigscience->of(eval_with_sentences()), "lm-loss-validation/sop loss validation @ 30 = 0");
}

TEST(MegatronCurves, HaveMegatronsTags) {
  const auto curves = make_curves(deck::TensorboardDialect::megatron);
  EXPECT_TRUE(curves->of(start()).empty());
  EXPECT_EQ(
      lines(curves->of(train_with_norms())),
      (Lines{"batch-size @ 30 = 16", "batch-size vs samples @ 480 = 16", "grad-norm @ 30 = 1.25",
             "grad-norm vs samples @ 480 = 1.25", "iteration-time @ 30 = 0.5",
             "learning-rate @ 30 = 0.001", "learning-rate vs samples @ 480 = 0.001",
             "lm loss @ 30 = 2.5", "lm loss vs samples @ 480 = 2.5", "loss-scale @ 30 = 4",
             "loss-scale vs samples @ 480 = 4", "num-zeros @ 30 = 7",
             "num-zeros vs samples @ 480 = 7", "params-norm @ 30 = 20",
             "params-norm vs samples @ 480 = 20", "world-size @ 30 = 8",
             "world-size vs samples @ 480 = 8"}));
  EXPECT_EQ(curves->of(train()).size(), 17u - 4u) << "without log.norms";
  EXPECT_EQ(lines(curves->of(eval("valid"))),
            (Lines{"lm loss validation @ 30 = 0", "lm loss validation ppl @ 30 = 1",
                   "lm loss validation ppl vs samples @ 480 = 1",
                   "lm loss validation vs samples @ 480 = 0"}));
  EXPECT_TRUE(curves->of(eval("test")).empty()) << "it has no tag";
  EXPECT_EQ(lines(curves->of(kTimers)), Lines{"forward-compute-time @ 30 = 0.25"});
  EXPECT_TRUE(curves->of(MemoryEvent{}).empty());
  EXPECT_TRUE(curves->of(CheckpointEvent{}).empty());
}

// 6 * 61440 tokens * 2e6 parameters / 1e9 are 737.28 gigaflos.
TEST(BigscienceCurves, HaveBigsciencesTags) {
  const auto curves = make_curves(deck::TensorboardDialect::bigscience);
  EXPECT_EQ(curves->of(start()), (std::vector<Point>{{"iteration-time/world_size", 20, 8},
                                                     {"iteration-time/world_size", 21, 0}}));
  // By BigScience's formula: 24 * 3 * 16 * 128 * 2 * 64^2 * (1 + 128 / 384 + 1000 / 2048) in 0.5 s
  // on 8 ranks.
  EXPECT_EQ(lines(curves->of(train_with_norms())),
            (Lines{"batch-size/batch-size @ 30 = 16",
                   "batch-size/batch-size vs samples @ 480 = 16",
                   "grad-norm/grad-norm @ 30 = 1.25",
                   "grad-norm/grad-norm vs samples @ 480 = 1.25",
                   "grad-norm/grad-norm vs tokens @ 61440 = 1.25",
                   "iteration-time/TFLOPs per gpu (estimated) @ 30 = 0.000550109",
                   "iteration-time/iteration-time @ 30 = 0.5",
                   "iteration-time/iteration-time vs samples @ 480 = 0.5",
                   "iteration-time/iteration-time vs tokens @ 61440 = 0.5",
                   "iteration-time/samples per second @ 30 = 32",
                   "iteration-time/samples per second per replica @ 30 = 8",
                   "iteration-time/tokens per second @ 30 = 4096",
                   "iteration-time/tokens per second per replica @ 30 = 1024",
                   "learning-rate/learning-rate @ 30 = 0.001",
                   "learning-rate/learning-rate vs samples @ 480 = 0.001",
                   "learning-rate/learning-rate vs tokens @ 61440 = 0.001",
                   "lm-loss-training/lm loss @ 30 = 2.5",
                   "lm-loss-training/lm loss vs gigaflos (without embeddings) @ 737 = 2.5",
                   "lm-loss-training/lm loss vs samples @ 480 = 2.5",
                   "lm-loss-training/lm loss vs tokens @ 61440 = 2.5",
                   "loss-scale/loss-scale @ 30 = 4",
                   "loss-scale/loss-scale vs samples @ 480 = 4",
                   "loss-scale/loss-scale vs tokens @ 61440 = 4",
                   "num-zeros/num-zeros @ 30 = 7",
                   "num-zeros/num-zeros vs samples @ 480 = 7",
                   "num-zeros/num-zeros vs tokens @ 61440 = 7",
                   "params-norm/params-norm @ 30 = 20",
                   "params-norm/params-norm vs samples @ 480 = 20",
                   "params-norm/params-norm vs tokens @ 61440 = 20",
                   "steps-vs-samples/y=samples,x=steps @ 30 = 480",
                   "steps-vs-samples/y=steps,x=samples @ 480 = 30",
                   "steps-vs-tokens/y=steps,x=tokens @ 61440 = 30",
                   "steps-vs-tokens/y=tokens,x=steps @ 30 = 61440"}));
  EXPECT_EQ(lines(curves->of(eval("valid"))),
            (Lines{"lm-loss-validation/lm loss validation @ 30 = 0",
                   "lm-loss-validation/lm loss validation ppl @ 30 = 1",
                   "lm-loss-validation/lm loss validation ppl vs gigaflos (without embeddings) @ "
                   "737 = 1",
                   "lm-loss-validation/lm loss validation ppl vs samples @ 480 = 1",
                   "lm-loss-validation/lm loss validation ppl vs tokens @ 61440 = 1",
                   "lm-loss-validation/lm loss validation vs gigaflos (without embeddings) @ 737 "
                   "= 0",
                   "lm-loss-validation/lm loss validation vs samples @ 480 = 0",
                   "lm-loss-validation/lm loss validation vs tokens @ 61440 = 0"}));
  EXPECT_EQ(curves->of(eval("test"))[0].tag, "lm-loss-validation/test/lm loss validation");
  EXPECT_EQ(lines(curves->of(kTimers)), Lines{"time/forward-compute-time @ 30 = 0.25"});
}

TEST(BigscienceCurves, GiveTheMeanSpeedOfARampUp) {
  const auto curves = make_curves(deck::TensorboardDialect::bigscience);
  curves->of(start());
  TrainEvent event = train();
  event.tokens_per_second = 3072;  // the batches before the last one were smaller
  std::map<std::string, double> values;
  for (const Point& point : curves->of(event)) values[point.tag] = point.y;
  EXPECT_DOUBLE_EQ(values.at("iteration-time/samples per second"), 24);
  EXPECT_NEAR(values.at("iteration-time/TFLOPs per gpu (estimated)"), 0.75 * 0.000550109, 1e-9);
}

TEST(BigscienceCurves, CountRecomputationAsAFourthPass) {
  const auto tflops = [](bool recomputes) {
    const auto curves = bigscience_curves();
    StartEvent event = start();
    event.model.recomputes = recomputes;
    curves->of(event);
    std::map<std::string, double> values;
    for (const Point& point : curves->of(train())) values[point.tag] = point.y;
    return values.at("iteration-time/TFLOPs per gpu (estimated)");
  };
  EXPECT_DOUBLE_EQ(tflops(true), tflops(false) * 4 / 3);
}

}  // namespace
}  // namespace trireme::report
