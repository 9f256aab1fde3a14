// One row per key. A row that names a member is bound to it; a row that names a path only has no
// feature yet.
#include "deck/row.hpp"

namespace trireme::deck {
namespace {

// Bounds that keep every product of the program within 64 bits.
constexpr double kMostLayers = 10'000;
constexpr double kMostWidth = 1 << 20;
constexpr double kMostSequence = 1 << 24;
constexpr double kMostVocab = 1 << 30;
constexpr double kMostRanks = 1 << 20;
constexpr double kMostBatch = 1 << 22;
constexpr double kMostSteps = 1e12;
constexpr double kMostSeed = 4294967295.0;

std::vector<Unit> counts() { return {Unit::iterations, Unit::samples}; }
std::vector<Unit> times() { return {Unit::seconds, Unit::minutes, Unit::hours}; }

/// Sets a default of the keys that only a dynamic loss scale has.
std::function<void(Deck&)> if_dynamic(void (*set)(LossScale&)) {
  return [set](Deck& deck) {
    if (is_dynamic(deck.precision)) set(deck.precision.loss_scale);
  };
}

/// Sets a default of the keys that only full recomputation has.
std::function<void(Deck&)> if_full(void (*set)(Recompute&)) {
  return [set](Deck& deck) {
    if (deck.recompute.granularity == Granularity::full) set(deck.recompute);
  };
}

void run_keys(std::vector<Key>& rows) {
  rows.insert(rows.end(),
              {
                  key(TRIREME_MEMBER(run.name))
                      .derived("the deck file's name", {})
                      .help("Name of the run."),
                  key(TRIREME_MEMBER(run.output))
                      .derived("runs/<run.name>",
                               [](Deck& deck) { deck.run.output = "runs/" + deck.run.name; })
                      .help("Folder of the run: logs and checkpoints."),
                  key(TRIREME_MEMBER(run.seed))
                      .by_default("1234")
                      .from(0, kMostSeed)
                      .fixed()
                      .help("Seed of initial weights and dropout."),
                  key(TRIREME_MEMBER(run.device))
                      .by_default("auto")
                      .noted()
                      .help("Where to compute; auto takes GPUs where there are any."),
                  key(TRIREME_MEMBER(run.deterministic))
                      .by_default("true")
                      .built({"true"})
                      .because("every backend is deterministic")
                      .noted()
                      .help("Equal runs give equal bits."),
              });
}

void model_keys(std::vector<Key>& rows) {
  rows.insert(rows.end(),
              {
                  key(TRIREME_MEMBER(model.family))
                      .by_default("gpt")
                      .built({"gpt"})
                      .fixed()
                      .help("Kind of model."),
                  key(TRIREME_MEMBER(model.layers))
                      .required()
                      .from(1, kMostLayers)
                      .fixed()
                      .help("Transformer layers."),
                  key(TRIREME_MEMBER(model.hidden))
                      .required()
                      .from(1, kMostWidth)
                      .fixed()
                      .help("Width of the residual stream."),
                  key(TRIREME_MEMBER(model.heads))
                      .required()
                      .from(1, kMostWidth)
                      .fixed()
                      .help("Attention heads; divides model.hidden."),
                  key(TRIREME_MEMBER(model.ffn))
                      .derived("4 * model.hidden",
                               [](Deck& deck) { deck.model.ffn = 4 * deck.model.hidden; })
                      .from(1, 4 * kMostWidth)
                      .fixed()
                      .help("Width of the MLP."),
                  key(TRIREME_MEMBER(model.sequence))
                      .required()
                      .from(1, kMostSequence)
                      .unit("tokens")
                      .fixed()
                      .help("Tokens of a training sample."),
                  key(TRIREME_MEMBER(model.positions))
                      .derived("model.sequence",
                               [](Deck& deck) { deck.model.positions = deck.model.sequence; })
                      .from(1, kMostSequence)
                      .unit("tokens")
                      .fixed()
                      .help("Rows of the position embedding: the longest sequence."),
                  key(TRIREME_MEMBER(model.vocab))
                      .derived("the tokenizer's", {})
                      .from(1, kMostVocab)
                      .unit("tokens")
                      .noted()
                      .help("Size of the vocabulary, unpadded; a checkpoint fits one size only."),
                  key(TRIREME_MEMBER(model.dropout.attention))
                      .by_default("0.1")
                      .at_least(0)
                      .below(1)
                      .noted()
                      .help("Dropout of attention probabilities."),
                  key(TRIREME_MEMBER(model.dropout.hidden))
                      .by_default("0.1")
                      .at_least(0)
                      .below(1)
                      .noted()
                      .help("Dropout of embeddings and of each block's outputs."),
                  key(TRIREME_MEMBER(model.init_std))
                      .by_default("0.02")
                      .above(0)
                      .noted()
                      .help("Standard deviation of initial weights."),
                  key(TRIREME_MEMBER(model.layernorm_eps))
                      .by_default("1e-05")
                      .above(0)
                      .fixed()
                      .help("Added to the variance in layer norms."),
                  key(TRIREME_MEMBER(model.embedding_layernorm))
                      .by_default("false")
                      .fixed()
                      .help("A layer norm on the word embedding."),
                  key(TRIREME_MEMBER(model.tie_embeddings))
                      .by_default("true")
                      .built({"true"})
                      .fixed()
                      .help("The head uses the word embedding's weights."),
                  later("model.bert.binary_head", "true or false")
                      .by_default("true")
                      .help("BERT: the head that judges sentence pairs."),
                  later("model.bert.post_norm", "true or false")
                      .by_default("false")
                      .help("BERT: layer norms after the residual sums."),
                  later("model.bert.deep_init", "true or false")
                      .by_default("false")
                      .help("BERT: initial weights scaled for deep models."),
              });
}

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
                      .built({"0", "1"})
                      .noted()
                      .help("ZeRO stage; 1 cuts the optimizer's state over data ranks."),
                  key(TRIREME_MEMBER(parallel.bucket))
                      .by_default("25e6")
                      .from(1, 1e12)
                      .unit("elements")
                      .noted()
                      .help("Gradients that data ranks reduce at a time."),
                  key(TRIREME_MEMBER(parallel.overlap.gradients))
                      .by_default("true")
                      .help("Reduce gradients while the backward pass runs."),
                  key(TRIREME_MEMBER(parallel.overlap.parameters))
                      .by_default("true")
                      .help("Gather parameters while the forward pass runs."),
                  key(TRIREME_MEMBER(parallel.overlap.pipeline))
                      .by_default("true")
                      .help("Send between stages while both compute."),
              });
}

void arithmetic_keys(std::vector<Key>& rows) {
  rows.insert(
      rows.end(),
      {
          key(TRIREME_MEMBER(batch.micro))
              .required()
              .from(1, kMostBatch)
              .unit("samples")
              .noted()
              .help("Samples that a rank computes at a time."),
          key(TRIREME_MEMBER(batch.global))
              .required()
              .from(1, kMostBatch)
              .unit("samples")
              .noted()
              .help("Samples of an iteration; a multiple of micro * parallel.data."),
          key(TRIREME_MEMBER(batch.rampup.start))
              .from(1, kMostBatch)
              .unit("samples")
              .noted()
              .help("First size of a global batch that grows; a multiple of micro * data."),
          key(TRIREME_MEMBER(batch.rampup.step))
              .from(1, kMostBatch)
              .unit("samples")
              .noted()
              .help("Growth of the global batch at a time; a multiple of micro * data."),
          key(TRIREME_MEMBER(batch.rampup.samples))
              .from(1, kMostSteps)
              .unit("samples")
              .noted()
              .help("Samples until the global batch is batch.global, in equal parts."),
          key(TRIREME_MEMBER(precision.compute))
              .derived("bf16 on cuda, fp32 on host",
                       [](Deck& deck) {
                         deck.precision.compute =
                             deck.run.device == Device::cuda ? Compute::bf16 : Compute::fp32;
                       })
              .noted()
              .help("Type of weights and activations."),
          key(TRIREME_MEMBER(precision.gradients))
              .by_default("fp32")
              .noted()
              .help("Type in which gradients are summed; same: that of precision.compute."),
          key(TRIREME_MEMBER(precision.loss_scale.value))
              .unset_word("dynamic")
              .above(0)
              .noted()
              .help("Factor on the loss; dynamic follows fp16's overflows, and is 1 without fp16."),
          key(TRIREME_MEMBER(precision.loss_scale.dialect))
              .derived("megatron, where the scale is dynamic", if_dynamic([](LossScale& scale) {
                         scale.dialect = LossScaleDialect::megatron;
                       }))
              .noted()
              .help("Whose defaults and rules: deepspeed gives up at the least scale."),
          key(TRIREME_MEMBER(precision.loss_scale.initial))
              .derived("2^32 (megatron) or 2^16 (deepspeed)", if_dynamic([](LossScale& scale) {
                         scale.initial =
                             scale.dialect == LossScaleDialect::deepspeed ? 65536 : 4294967296;
                       }))
              .above(0)
              .noted()
              .help("First dynamic scale of a fresh run."),
          key(TRIREME_MEMBER(precision.loss_scale.window))
              .derived("1000", if_dynamic([](LossScale& scale) { scale.window = 1000; }))
              .from(1, kMostSteps)
              .unit("iterations")
              .noted()
              .help("Good iterations before the scale doubles."),
          key(TRIREME_MEMBER(precision.loss_scale.hysteresis))
              .derived("2", if_dynamic([](LossScale& scale) { scale.hysteresis = 2; }))
              .from(1, kMostSteps)
              .unit("iterations")
              .noted()
              .help("Overflows before the scale halves; filled up again when it doubles."),
          key(TRIREME_MEMBER(precision.loss_scale.minimum))
              .derived("1", if_dynamic([](LossScale& scale) { scale.minimum = 1; }))
              .above(0)
              .noted()
              .help("Least dynamic scale."),
          key(TRIREME_MEMBER(recompute.granularity))
              .by_default("none")
              .noted()
              .help("What the backward pass computes again instead of keeping: layer norms "
                    "(selective) or layers (full)."),
          key(TRIREME_MEMBER(recompute.method))
              .derived("uniform if full", if_full([](Recompute& recompute) {
                         recompute.method = RecomputeMethod::uniform;
                       }))
              .noted()
              .help("Which layers: all, in groups (uniform), or the first of each stage's chunk "
                    "(block)."),
          key(TRIREME_MEMBER(recompute.layers))
              .derived("1 if full", if_full([](Recompute& recompute) { recompute.layers = 1; }))
              .from(1, kMostLayers)
              .noted()
              .help("Layers of a group (uniform), or how many are computed again (block)."),
          key(TRIREME_MEMBER(recompute.partition))
              .by_default("false")
              .built({"false"})
              .noted()
              .help("Tensor ranks share the kept activations."),
          key(TRIREME_MEMBER(recompute.offload))
              .by_default("false")
              .built({"false"})
              .noted()
              .help("Kept activations go to host memory."),
          key(TRIREME_MEMBER(recompute.contiguous))
              .by_default("false")
              .built({"false"})
              .noted()
              .help("Kept activations lie in one buffer."),
      });
}

void optimizer_keys(std::vector<Key>& rows) {
  rows.insert(
      rows.end(),
      {
          key(TRIREME_MEMBER(optimizer.type)).by_default("adamw").fixed().help("Update rule."),
          key(TRIREME_MEMBER(optimizer.beta1))
              .by_default("0.9")
              .at_least(0)
              .below(1)
              .noted()
              .help("Decay of the mean of gradients; not with sgd."),
          key(TRIREME_MEMBER(optimizer.beta2))
              .by_default("0.999")
              .at_least(0)
              .below(1)
              .noted()
              .help("Decay of the mean of squared gradients; not with sgd."),
          key(TRIREME_MEMBER(optimizer.eps))
              .by_default("1e-08")
              .above(0)
              .noted()
              .help("Added to the root of the second moment."),
          key(TRIREME_MEMBER(optimizer.momentum))
              .derived("0 with sgd",
                       [](Deck& deck) {
                         if (deck.optimizer.type == OptimizerType::sgd) deck.optimizer.momentum = 0;
                       })
              .at_least(0)
              .below(1)
              .fixed()
              .help("Momentum of sgd; 0 keeps none."),
          key(TRIREME_MEMBER(optimizer.weight_decay))
              .by_default("0.01")
              .at_least(0)
              .noted()
              .help("Weight decay, in the gradient with adam and sgd; biases and norms have none."),
          key(TRIREME_MEMBER(optimizer.clip))
              .by_default("1")
              .at_least(0)
              .noted()
              .help("Largest global norm of the gradient; 0 does not clip."),
          key(TRIREME_MEMBER(schedule.type))
              .by_default("cosine")
              .noted()
              .help("Course of the learning rate after the warm-up."),
          key(TRIREME_MEMBER(schedule.dialect))
              .by_default("megatron")
              .noted()
              .help(
                  "megatron counts samples; v1 has Megatron-LM 1.1.5's formulas over iterations."),
          key(TRIREME_MEMBER(schedule.peak))
              .derived("needed, but for lr-range-test", {})
              .above(0)
              .noted()
              .help("Largest learning rate."),
          key(TRIREME_MEMBER(schedule.minimum))
              .by_default("0")
              .at_least(0)
              .noted()
              .help("Least learning rate after the warm-up; lr-range-test starts here."),
          key(TRIREME_MEMBER(schedule.warmup))
              .by_default("0 iterations")
              .from(0, kMostSteps)
              .units({Unit::iterations, Unit::samples, Unit::fraction})
              .noted()
              .help("Linear rise from 0 to the peak; a number below 1 is a fraction of decay."),
          key(TRIREME_MEMBER(schedule.decay))
              .derived("the run's length",
                       [](Deck& deck) {
                         const Train& train = deck.train;
                         const Unit unit = train.samples ? Unit::samples : Unit::iterations;
                         const std::int64_t length =
                             train.samples ? *train.samples : train.iterations.value_or(0);
                         deck.schedule.decay = {static_cast<double>(length), unit};
                       })
              .from(1, kMostSteps)
              .units(counts())
              .noted()
              .help("From the start until the minimum is reached; may be shorter than the run."),
          key(TRIREME_MEMBER(schedule.weight_decay.end))
              .derived(
                  "optimizer.weight_decay",
                  [](Deck& deck) { deck.schedule.weight_decay.end = deck.optimizer.weight_decay; })
              .at_least(0)
              .noted()
              .help("Weight decay at the end of the run, which starts with optimizer's."),
          key(TRIREME_MEMBER(schedule.weight_decay.type))
              .by_default("constant")
              .noted()
              .help("Course of the weight decay between the two."),
          key(TRIREME_MEMBER(schedule.range_test.step))
              .derived("2000 iterations with lr-range-test",
                       [](Deck& deck) {
                         if (deck.schedule.type == ScheduleType::lr_range_test)
                           deck.schedule.range_test.step = {2000, Unit::iterations};
                       })
              .from(1, kMostSteps)
              .units(counts())
              .noted()
              .help("A step of lr-range-test, over which the rate grows once."),
          key(TRIREME_MEMBER(schedule.range_test.rate))
              .derived("1 with lr-range-test",
                       [](Deck& deck) {
                         if (deck.schedule.type == ScheduleType::lr_range_test)
                           deck.schedule.range_test.rate = 1;
                       })
              .at_least(0)
              .noted()
              .help("Growth of a step of lr-range-test, in units of schedule.minimum."),
          key(TRIREME_MEMBER(schedule.range_test.staircase))
              .derived("false with lr-range-test",
                       [](Deck& deck) {
                         if (deck.schedule.type == ScheduleType::lr_range_test)
                           deck.schedule.range_test.staircase = false;
                       })
              .noted()
              .help("lr-range-test grows at the end of each step only."),
      });
}

void data_keys(std::vector<Key>& rows) {
  rows.insert(
      rows.end(),
      {
          key(TRIREME_MEMBER(data.train))
              .derived("needed to train", {})
              .noted()
              .help("Indexed dataset: the path of its .bin and .idx without the ending; [0.3, a, "
                    "0.7, "
                    "b] mixes two."),
          key(TRIREME_MEMBER(data.valid))
              .derived("a part of data.train", {})
              .noted()
              .help("Datasets of their own for validation, written like data.train."),
          key(TRIREME_MEMBER(data.test))
              .derived("a part of data.train", {})
              .noted()
              .help("Datasets of their own for tests, written like data.train."),
          key(TRIREME_MEMBER(data.split))
              .by_default("969,30,1")
              .at_least(0)
              .fixed()
              .help(
                  "Weights of train, valid and test in data.train; a part with datasets of its own "
                  "has none."),
          key(TRIREME_MEMBER(data.seed))
              .derived("run.seed", [](Deck& deck) { deck.data.seed = deck.run.seed; })
              .from(0, kMostSeed)
              .fixed()
              .help("Seed of the order of samples."),
          key(TRIREME_MEMBER(data.tokenizer.type))
              .built({"gpt2", "sentencepiece", "whitespace", "bytes"})
              .fixed()
              .help("Tokenizer; may be left out where model.vocab is given."),
          key(TRIREME_MEMBER(data.tokenizer.vocab))
              .noted()
              .help("Vocabulary file (gpt2, whitespace)."),
          key(TRIREME_MEMBER(data.tokenizer.merges)).noted().help("Merges file (gpt2)."),
          key(TRIREME_MEMBER(data.tokenizer.model)).noted().help("Model file (sentencepiece)."),
          key(TRIREME_MEMBER(data.corpora))
              .noted()
              .help("Names of datasets for data.train, valid and test: {wiki: "
                    "data/wiki_text_document}."),
          key(TRIREME_MEMBER(data.index_cache))
              .derived("beside the dataset", {})
              .help("Folder that keeps the sample indices."),
          key(TRIREME_MEMBER(data.index_files))
              .noted()
              .help("Common stem of existing Megatron index files (.npy) to use."),
          key(TRIREME_MEMBER(data.reset_positions))
              .by_default("false")
              .fixed()
              .help("Positions start again after each end of document."),
          key(TRIREME_MEMBER(data.reset_attention))
              .by_default("false")
              .fixed()
              .help("Attention stays within a document."),
          key(TRIREME_MEMBER(data.eod_loss))
              .by_default("true")
              .noted()
              .help("Count the loss at end-of-document tokens."),
          later("data.bert.mask_probability", "number")
              .by_default("0.15")
              .help("BERT: share of masked tokens."),
          later("data.bert.max_predictions", "whole number").help("BERT: most masked tokens."),
          later("data.bert.short_sequence", "number")
              .by_default("0.1")
              .help("BERT: share of short samples."),
          later("data.bert.sentence_task", "order or next").help("BERT: task of sentence pairs."),
      });
}

void train_keys(std::vector<Key>& rows) {
  rows.insert(
      rows.end(),
      {
          key(TRIREME_MEMBER(train.iterations))
              .from(1, kMostSteps)
              .unit("iterations")
              .noted()
              .help("Length of the run; give this or train.samples."),
          key(TRIREME_MEMBER(train.samples))
              .from(1, kMostSteps)
              .unit("samples")
              .noted()
              .help("Length of the run; a last batch that is not full is dropped."),
          key(TRIREME_MEMBER(train.exit_interval))
              .from(1, kMostSteps)
              .units(counts())
              .help("Stop, with a checkpoint, at each multiple of this."),
          key(TRIREME_MEMBER(train.exit_duration))
              .above(0)
              .units(times())
              .help("Stop, with a checkpoint, after this time."),
          key(TRIREME_MEMBER(train.kill_switch))
              .help("Stop, with a checkpoint, when this file appears."),
          key(TRIREME_MEMBER(train.skip))
              .from(1, kMostSteps)
              .unit("iterations")
              .noted()
              .help("Iterations whose data is passed over: they take the data that follows."),
          key(TRIREME_MEMBER(evaluate.every))
              .from(1, kMostSteps)
              .units(counts())
              .help("Evaluate on the validation split at each multiple of this."),
          key(TRIREME_MEMBER(evaluate.iterations))
              .by_default("10")
              .from(1, 1e6)
              .unit("iterations")
              .help("Batches of one evaluation."),
          key(TRIREME_MEMBER(evaluate.at_end))
              .derived("true where there is a validation part",
                       [](Deck& deck) {
                         const auto& split = deck.data.split;
                         deck.evaluate.at_end =
                             deck.data.valid || (split.size() > 1 && split[1] > 0);
                       })
              .help("Evaluate when the run has finished."),
          key(TRIREME_MEMBER(checkpoint.every))
              .from(1, kMostSteps)
              .units(counts())
              .help("Write a checkpoint at each multiple of this."),
          key(TRIREME_MEMBER(checkpoint.at_end))
              .by_default("true")
              .help("Write a checkpoint when the run has finished."),
          key(TRIREME_MEMBER(checkpoint.keep))
              .unset_word("all")
              .at_least(1)
              .unit("checkpoints")
              .help("How many of the newest to keep."),
          key(TRIREME_MEMBER(checkpoint.keep_every))
              .from(1, kMostSteps)
              .units(counts())
              .help("Beside the newest, keep those at each multiple of this."),
          key(TRIREME_MEMBER(checkpoint.async))
              .by_default("false")
              .built({"false"})
              .help("Write while training goes on."),
          key(TRIREME_MEMBER(checkpoint.load)).help("Checkpoint that a fresh run starts from."),
      });
}

void log_keys(std::vector<Key>& rows) {
  rows.insert(
      rows.end(),
      {
          key(TRIREME_MEMBER(comm.timeout))
              .by_default("10 minutes")
              .above(0)
              .units(times())
              .help("Longest wait for other ranks in one operation; then the job ends."),
          key(TRIREME_MEMBER(comm.nccl_debug))
              .help("What NCCL prints about itself: WARN, INFO (its NCCL_DEBUG)."),
          key(TRIREME_MEMBER(log.every))
              .by_default("10")
              .from(1, kMostSteps)
              .unit("iterations")
              .help("Iterations between training lines."),
          key(TRIREME_MEMBER(log.tensorboard.enable))
              .by_default("true")
              .help("Write TensorBoard event files."),
          key(TRIREME_MEMBER(log.tensorboard.dialect))
              .by_default("trireme")
              .help("Whose names the TensorBoard tags have."),
          key(TRIREME_MEMBER(log.tensorboard.flush_every))
              .by_default("10")
              .from(1, kMostSteps)
              .unit("events")
              .help("TensorBoard events between flushes."),
          key(TRIREME_MEMBER(log.timers))
              .by_default("false")
              .help("Log the time of each part of an iteration, over the ranks."),
          key(TRIREME_MEMBER(log.memory))
              .by_default("true")
              .help("Log the memory in use after the first training line."),
          key(TRIREME_MEMBER(log.norms))
              .by_default("false")
              .help("Log the norm of the parameters and the zeros in the gradient."),
          later("log.gpu_every", "whole number").help("Iterations between lines about GPUs."),
          key(TRIREME_MEMBER(log.rank_files))
              .by_default("false")
              .built({"false"})
              .help("Files of each node's output."),
          later("log.trace.iterations", "list of whole numbers")
              .help("Iterations whose timeline is recorded."),
          later("sweep", "section of key: [values]").help("Values that a sweep tries."),
      });
}

}  // namespace

const std::vector<Key>& keys() {
  static const std::vector<Key> table = [] {
    std::vector<Key> rows;
    run_keys(rows);
    model_keys(rows);
    parallel_keys(rows);
    arithmetic_keys(rows);
    optimizer_keys(rows);
    data_keys(rows);
    train_keys(rows);
    log_keys(rows);
    return rows;
  }();
  return table;
}

}  // namespace trireme::deck
