// Rows: batches, length, learning rate, optimizer, recomputation, checkpoints, evaluation, logs.
#include "convert/flags/arguments.hpp"

namespace trireme::convert::flags {
namespace {

constexpr std::string_view kLogged = "is always logged";
constexpr std::string_view kPartState =
    "a checkpoint contains the whole state, so that a run resumes bit for bit";
constexpr std::string_view kOneScheduler =
    "the deck determines the schedule; 'trireme-pretrain --restart' reports what changed";
constexpr std::string_view kWhenEvaluating = "is an option of trireme-evaluate";
constexpr std::string_view kWhenGenerating = "is an option of trireme-generate";

}  // namespace

std::vector<Flag> training_flags() {
  return {
      // Batches and length.
      to_rule("micro-batch-size", "batch.micro"),
      to_rule("batch-size", "batch.micro"),
      to_rule("gas", "batch.global"),
      to_rule("gradient-accumulation-steps", "batch.global"),
      to_rule("global-batch-size", "batch.global"),
      to_rule("rampup-batch-size", "batch.rampup.start", kSeveral),
      to_rule("train-iters", "train.iterations"),
      to_rule("train-samples", "train.samples"),
      to_rule("train-tokens", "train.samples"),
      to_key("exit-interval", "train.exit_interval", "iterations"),
      to_key("exit-duration-in-mins", "train.exit_duration", "minutes"),
      to_key("kill-switch-path", "train.kill_switch"),
      to_rule("skip-train-iteration-range", "train.skip", kSeveral),
      refuse("eval-only", kOne, "evaluate a checkpoint with trireme-evaluate"),
      drop("exit-signal-handler", kNone, "SIGUSR1 and SIGTERM always stop a run with a checkpoint"),
      drop("manual-gc", kNone, "Trireme has no garbage collector"),
      drop("manual-gc-interval", kOne, "Trireme has no garbage collector"),
      drop("check-for-nan-in-loss-and-grad", kNone,
           "Trireme always checks, and skips such an update"),
      drop("no-check-for-nan-in-loss-and-grad", kNone, "Trireme always checks"),
      to_rule("calculate-per-token-loss", "", kNone),

      // Learning rate.
      to_rule("lr", "schedule.peak"),
      to_rule("min-lr", "schedule.minimum"),
      to_rule("lr-decay-style", "schedule.type"),
      to_rule("lr-decay-iters", "schedule.decay"),
      to_rule("lr-decay-samples", "schedule.decay"),
      to_rule("lr-decay-tokens", "schedule.decay"),
      to_rule("lr-warmup-fraction", "schedule.warmup"),
      to_rule("lr-warmup-iters", "schedule.warmup"),
      to_rule("lr-warmup-samples", "schedule.warmup"),
      to_rule("lr-warmup-tokens", "schedule.warmup"),
      to_rule("warmup", "schedule.warmup"),
      to_rule("lr-warmup-init", "schedule.warmup"),
      refuse("lr-decay-ratio", kOne, "give --lr-decay-iters and --min-lr"),
      drop("override-lr-scheduler", kNone, kOneScheduler),
      drop("override-opt-param-scheduler", kNone, kOneScheduler),
      drop("use-checkpoint-lr-scheduler", kNone, kOneScheduler),
      drop("use-checkpoint-opt-param-scheduler", kNone, kOneScheduler),

      // Optimizer.
      to_rule("optimizer", "optimizer.type"),
      to_rule("weight-decay", "optimizer.weight_decay"),
      to_rule("start-weight-decay", "optimizer.weight_decay"),
      to_key("end-weight-decay", "schedule.weight_decay.end"),
      to_key("weight-decay-incr-style", "schedule.weight_decay.type"),
      to_key("clip-grad", "optimizer.clip"),
      to_rule("adam-beta1", "optimizer.beta1"),
      to_rule("adam-beta2", "optimizer.beta2"),
      to_rule("adam-eps", "optimizer.eps"),
      to_rule("sgd-momentum", "optimizer.momentum"),
      refuse("use-bnb-optimizer", kNone, "moments are fp32; remove the flag"),
      refuse("optimizer-cpu-offload", kNone, "moments stay on the GPU; use --zero-stage 1"),
      refuse("cpu-optimizer", kNone, "moments stay on the GPU; use --zero-stage 1"),
      refuse("cpu-torch-adam", kNone, "moments stay on the GPU; use --zero-stage 1"),

      // Recomputation of activations.
      to_rule("checkpoint-activations", "recompute.granularity", kNone),
      to_rule("checkpoint-num-layers", "recompute.layers"),
      to_rule("activations-checkpoint-method", "recompute.method"),
      to_rule("activations-checkpoint-num-layers", "recompute.layers"),
      to_rule("recompute-activations", "recompute.granularity", kNone),
      to_rule("recompute-granularity", "recompute.granularity"),
      to_rule("recompute-method", "recompute.method"),
      to_rule("recompute-num-layers", "recompute.layers"),
      to_rule("distribute-checkpointed-activations", "recompute.partition", kNone),
      to_rule("distribute-saved-activations", "recompute.partition", kNone),
      to_rule("partition-activations", "recompute.partition", kNone),
      to_rule("checkpoint-in-cpu", "recompute.offload", kNone),
      to_rule("contigious-checkpointing", "recompute.contiguous", kNone),
      drop("deepspeed-activation-checkpointing", kNone,
           "Trireme has one implementation of recomputation"),
      drop("synchronize-each-layer", kNone, "is for debugging DeepSpeed; it changes no result"),
      drop("profile-backward", kNone, "'trireme-bench step' shows where a step's time goes"),

      // Checkpoints.
      to_rule("save", "run.output"),
      to_rule("load", "checkpoint.load"),
      to_rule("save-interval", "checkpoint.every"),
      to_rule("save-retain-interval", "checkpoint.keep_every"),
      turns("async-save", "checkpoint.async", "true"),
      drop("dist-ckpt-strictness", kOne, "missing and unexpected tensors are always errors"),
      drop("ckpt-fully-parallel-save", kNone, "every rank writes its shard"),
      drop("no-ckpt-fully-parallel-save", kNone, "every rank writes its shard"),
      drop("ckpt-fully-parallel-load", kNone, "every rank reads its shard"),
      drop("ckpt-assume-constant-structure", kNone, "a checkpoint is one HDF5 file"),
      drop("exit-on-missing-checkpoint", kNone, "a missing checkpoint.load is always an error"),
      drop("exit-signal", kOne, "SIGUSR1 and SIGTERM always stop a run with a checkpoint"),
      drop("rerun-mode", kOne, "results are reproducible bit for bit: run it again"),
      drop("train-sync-interval", kOne, "the gradient reduction synchronizes the ranks"),
      drop("log-energy", kNone, "log.gpu_every records the power of each GPU"),
      drop("logging-level", kOne, "Trireme has one log level"),
      drop("enable-one-logger", kNone, "metrics.jsonl records every event"),
      drop("no-one-logger", kNone, "metrics.jsonl records every event"),
      drop("use-precision-aware-optimizer", kNone, "moments and master weights are fp32"),
      to_rule("finetune", "", kNone),
      to_rule("no-load-optim", "", kNone),
      to_rule("no-load-rng", "", kNone),
      drop("no-save-optim", kNone, kPartState),
      drop("no-save-rng", kNone, kPartState),
      drop("ckpt-format", kOne, "a checkpoint is one HDF5 file of the logical model"),
      drop("use-dist-ckpt", kNone, "a checkpoint is one HDF5 file of the logical model"),
      drop("auto-detect-ckpt-format", kNone, "a checkpoint is one HDF5 file"),
      drop("universal-checkpoint", kNone, "every checkpoint loads at any layout"),
      drop("resume-dataloader", kNone, kPartState),
      drop("adlr-autoresume", kNone, "a requeued job resumes: exit code 75"),
      drop("adlr-autoresume-interval", kOne, "a requeued job resumes: exit code 75"),

      // Evaluation.
      to_rule("eval-interval", "evaluate.every"),
      to_rule("eval-iters", "evaluate.iterations"),
      drop("eval-batch-size", kOne, kWhenEvaluating),
      drop("eval-seq-length", kOne, kWhenEvaluating),
      drop("eval-max-preds-per-seq", kOne, kWhenEvaluating),
      drop("overlapping-eval", kOne, kWhenEvaluating),
      refuse("cloze-eval", kNone, kWhenEvaluating),
      drop("strict-lambada", kNone, kWhenEvaluating),
      drop("temperature", kOne, kWhenGenerating),
      drop("top-p", kOne, kWhenGenerating),
      drop("top-k", kOne, kWhenGenerating),
      drop("greedy", kNone, kWhenGenerating),
      drop("out-seq-length", kOne, kWhenGenerating),

      // Logs.
      to_rule("log-interval", "log.every"),
      to_rule("tensorboard-dir", "log.tensorboard.enable"),
      to_key("tensorboard-queue-size", "log.tensorboard.flush_every"),
      turns("log-params-norm", "log.norms", "true"),
      turns("log-num-zeros-in-grad", "log.norms", "true"),
      turns("log-timers-to-tensorboard", "log.timers", "true"),
      to_rule("timing-log-level", "log.timers"),
      drop("timing-log-option", kOne, "log.timers records the times of all ranks"),
      drop("tensorboard-log-interval", kOne, "every logged iteration writes an event: log.every"),
      drop("log-batch-size-to-tensorboard", kNone, kLogged),
      drop("log-validation-ppl-to-tensorboard", kNone, kLogged),
      drop("log-memory-to-tensorboard", kNone, kLogged),
      drop("log-world-size-to-tensorboard", kNone, kLogged),
      drop("log-learning-rate-to-tensorboard", kNone, kLogged),
      drop("log-loss-scale-to-tensorboard", kNone, kLogged),
      drop("log-optimizer-states-to-tensorboard", kNone, "log.norms records the norms"),
      drop("no-log-learnig-rate-to-tensorboard", kNone, kLogged),
      drop("no-log-loss-scale-to-tensorboard", kNone, kLogged),
      drop("log-throughput", kNone, kLogged),
      drop("log-progress", kNone, "metrics.jsonl records every event"),
      drop("log-level", kOne, "Trireme has one log level"),
      drop("log-level-replica", kOne, "Trireme has one log level"),
      drop("log-path", kOne, "logs go to run.output"),
      drop("codecarbon-dir", kOne, "Trireme does not measure it"),
      drop("wandb-project", kOne, "metrics.jsonl records what Weights & Biases would show"),
      drop("wandb-exp-name", kOne, "metrics.jsonl records what Weights & Biases would show"),
      drop("wandb-save-dir", kOne, "metrics.jsonl records what Weights & Biases would show"),
      drop("profile", kNone, "'trireme-bench step' shows where a step's time goes"),
      drop("profile-step-start", kOne, "'trireme-bench step' shows where a step's time goes"),
      drop("profile-step-end", kOne, "'trireme-bench step' shows where a step's time goes"),
      drop("profile-ranks", kSeveral, "'trireme-bench step' shows where a step's time goes"),
  };
}

}  // namespace trireme::convert::flags
