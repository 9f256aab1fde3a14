// Rows: batches, length, learning rate, optimizer, recomputation, checkpoints, evaluation, logs;
// parallelism, DeepSpeed, and the keys of ds_config.json. And the look-up in the table.
#include <fmt/format.h>

#include <algorithm>

#include "convert/flags/recipe.hpp"
#include "core/text.hpp"

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

// Rows: parallelism, DeepSpeed, and the keys of ds_config.json. And the look-up in the table.

namespace {

constexpr std::string_view kBackend = "NCCL on GPUs, MPI on the host";
constexpr std::string_view kTransport = "gradient reduction is not configured in the deck";
constexpr std::string_view kLauncher = "mpirun or srun starts the ranks";
constexpr std::string_view kZeroDetail = "ZeRO's communication is not configured in the deck";
constexpr std::string_view kWholeCheckpoint = "a checkpoint contains the full weights";
constexpr std::string_view kPrinted = "the deck's log section configures the output";
constexpr std::string_view kOffload =
    "Trireme has no CPU or NVMe offload; remove it from the recipe";
constexpr std::string_view kJsonRules =
    "DeepSpeed reads it from its JSON file, and so does Trireme";
constexpr std::string_view kClientOptimizer =
    "Megatron creates the optimizer from the command line's flags";

}  // namespace

std::vector<Flag> system_flags() {
  return {
      to_rule("tensor-model-parallel-size", "parallel.tensor"),
      to_rule("model-parallel-size", "parallel.tensor"),
      to_rule("pipeline-model-parallel-size", "parallel.pipeline"),
      to_rule("pipe-parallel-size", "parallel.pipeline"),
      to_rule("num-layers-per-virtual-pipeline-stage", "parallel.interleave"),
      to_rule("num-virtual-stages-per-pipeline-rank", "parallel.interleave"),
      to_rule("balance", "parallel.partition"),
      to_rule("pp-partition-method", "parallel.partition"),
      turns("sequence-parallel", "parallel.sequence", "true"),
      to_rule("use-distributed-optimizer", "parallel.zero", kNone),
      turns("overlap-grad-reduce", "parallel.overlap.gradients", "true"),
      turns("overlap-param-gather", "parallel.overlap.parameters", "true"),
      turns("no-overlap-p2p-communication", "parallel.overlap.pipeline", "false"),
      to_key("ddp-bucket-size", "parallel.bucket"),
      to_rule("context-parallel-size", ""),
      to_rule("expert-model-parallel-size", ""),
      to_key("distributed-timeout-minutes", "comm.timeout", "minutes"),
      to_rule("decoder-first-pipeline-num-layers", "parallel.partition"),
      to_rule("decoder-last-pipeline-num-layers", "parallel.partition"),
      turns("overlap-p2p-communication", "parallel.overlap.pipeline", "true"),
      turns("overlap-p2p-communication-warmup-flush", "parallel.overlap.pipeline", "true"),
      turns("grad-reduce-in-bf16", "precision.gradients", "same"),
      drop("align-grad-reduce", kNone, kTransport),
      drop("no-align-grad-reduce", kNone, kTransport),
      drop("align-param-gather", kNone, kTransport),
      drop("no-align-param-gather", kNone, kTransport),
      drop("overlap-param-gather-with-optimizer-step", kNone, kTransport),
      drop("ddp-num-buckets", kOne, kTransport),
      drop("ddp-average-in-collective", kNone, kTransport),
      drop("ddp-pad-buckets-for-high-nccl-busbw", kNone, kTransport),
      drop("use-ring-exchange-p2p", kNone, kTransport),
      drop("tp-comm-overlap", kNone, kTransport),
      drop("use-tp-pp-dp-mapping", kNone, "ranks are ordered tensor, data, pipeline"),
      drop("nccl-ub", kNone, kBackend),
      drop("use-sharp", kNone, kBackend),
      drop("nccl-communicator-config-path", kOne, kBackend),
      drop("distributed-backend", kOne, kBackend),
      drop("DDP-impl", kOne, kTransport),
      drop("use-contiguous-buffers-in-ddp", kNone, kTransport),
      drop("use-contiguous-buffers-in-local-ddp", kNone, kTransport),
      drop("no-contiguous-buffers-in-local-ddp", kNone, kTransport),
      drop("no-scatter-gather-tensors-in-pipeline", kNone, kTransport),
      drop("no-async-tensor-model-parallel-allreduce", kNone, kTransport),
      drop("empty-unused-memory-level", kOne, "memory is planned and allocated once"),
      drop("lazy-mpu-init", kOne, kLauncher),
      drop("world-size", kOne, kLauncher),
      drop("local-rank", kOne, kLauncher),
      drop("local-world-size", kOne, kLauncher),
      drop("master-addr", kOne, kLauncher),
      drop("master-port", kOne, kLauncher),

      // DeepSpeed.
      to_rule("deepspeed", "", kNone),
      to_rule("deepspeed-config", ""),
      drop("deepspeed-mpi", kNone, kLauncher),
      to_rule("zero-stage", "parallel.zero"),
      drop("zero-reduce-scatter", kNone, kJsonRules),
      drop("zero-contigious-gradients", kNone, kJsonRules),
      drop("zero-reduce-bucket-size", kOne, kJsonRules),
      drop("zero-allgather-bucket-size", kOne, kJsonRules),
      drop("no-pipeline-parallel", kNone, "parallel.pipeline is 1 by default"),
      refuse("remote-device", kOne, kOffload),
      drop("use-pin-memory", kNone, kZeroDetail),
      drop("scattered-embeddings", kNone, "activation memory is planned: see --plan"),
      drop("split-transformers", kNone, "activation memory is planned: see --plan"),
      drop("memory-centric-tiled-linear", kNone, "activation memory is planned: see --plan"),
      drop("tile-factor", kOne, "activation memory is planned: see --plan"),
  };
}

const std::vector<Flag>& json_keys() {
  static const std::vector<Flag> table = {
      to_rule("train_batch_size", "batch.global"),
      to_rule("train_micro_batch_size_per_gpu", "batch.micro"),
      to_rule("gradient_accumulation_steps", "batch.global"),
      to_rule("gradient_clipping", "optimizer.clip"),
      to_rule("fp16.enabled", "precision.compute"),
      to_rule("fp16.loss_scale", "precision.loss_scale.value"),
      to_rule("fp16.initial_scale_power", "precision.loss_scale.initial"),
      to_rule("fp16.loss_scale_window", "precision.loss_scale.window"),
      to_rule("fp16.hysteresis", "precision.loss_scale.hysteresis"),
      to_rule("fp16.min_loss_scale", "precision.loss_scale.minimum"),
      to_rule("bf16.enabled", "precision.compute"),
      to_rule("bfloat16.enabled", "precision.compute"),
      to_rule("zero_optimization.stage", "parallel.zero"),
      to_key("zero_optimization.reduce_bucket_size", "parallel.bucket"),
      to_key("zero_optimization.overlap_comm", "parallel.overlap.gradients"),
      drop("zero_optimization.allgather_bucket_size", kOne, kZeroDetail),
      drop("zero_optimization.allgather_partitions", kOne, kZeroDetail),
      drop("zero_optimization.reduce_scatter", kOne, kZeroDetail),
      drop("zero_optimization.contiguous_gradients", kOne, kZeroDetail),
      drop("zero_optimization.round_robin_gradients", kOne, kZeroDetail),
      drop("zero_optimization.sub_group_size", kOne, kZeroDetail),
      drop("zero_optimization.ignore_unused_parameters", kOne, kZeroDetail),
      drop("zero_optimization.stage3_max_live_parameters", kOne, kZeroDetail),
      drop("zero_optimization.stage3_max_reuse_distance", kOne, kZeroDetail),
      drop("zero_optimization.stage3_prefetch_bucket_size", kOne, kZeroDetail),
      drop("zero_optimization.stage3_param_persistence_threshold", kOne, kZeroDetail),
      drop("zero_optimization.stage3_param_persitence_threshold", kOne, kZeroDetail),
      drop("zero_optimization.stage3_gather_fp16_weights_on_model_save", kOne, kWholeCheckpoint),
      drop("zero_optimization.stage3_gather_16bit_weights_on_model_save", kOne, kWholeCheckpoint),
      drop("zero_optimization.elastic_checkpoint", kOne, "every checkpoint loads at any layout"),
      refuse("zero_optimization.cpu_offload", kOne, kOffload),
      refuse("zero_optimization.offload_optimizer", kOne, kOffload),
      refuse("zero_optimization.offload_param", kOne, kOffload),
      drop("aio", kOne, "Trireme has no offload"),
      drop("zero_allow_untested_optimizer", kOne, "every optimizer works with every ZeRO stage"),
      drop("optimizer", kOne, kClientOptimizer),
      to_rule("scheduler.type", "schedule.type"),
      to_rule("scheduler.params.lr_range_test_min_lr", "schedule.minimum"),
      to_rule("scheduler.params.lr_range_test_step_size", "schedule.range_test.step"),
      to_rule("scheduler.params.lr_range_test_step_rate", "schedule.range_test.rate"),
      to_rule("scheduler.params.lr_range_test_staircase", "schedule.range_test.staircase"),
      drop("steps_per_print", kOne, kPrinted),
      drop("wall_clock_breakdown", kOne, kPrinted),
      drop("dump_state", kOne, kPrinted),
      drop("memory_breakdown", kOne, kPrinted),
      drop("tensorboard", kOne, kPrinted),
      drop("comms_logger", kOne, kPrinted),
      drop("flops_profiler", kOne, kPrinted),
      drop("activation_checkpointing", kOne, "the command line's flags configure it"),
      drop("prescale_gradients", kOne, kTransport),
      drop("gradient_predivide_factor", kOne, kTransport),
      drop("communication_data_type", kOne, kTransport),
      drop("data_types", kOne, kTransport),
      refuse("curriculum_learning", kOne, "Trireme trains with one sequence length"),
      refuse("data_efficiency", kOne, "Trireme uses every sample with all its tokens"),
      refuse("sparse_attention", kOne, "attention is dense"),
  };
  return table;
}

const std::vector<Flag>& command_flags() {
  static const std::vector<Flag> table = [] {
    std::vector<Flag> rows;
    for (const auto& part :
         {model_flags(), core_flags(), training_flags(), data_flags(), system_flags()})
      rows.insert(rows.end(), part.begin(), part.end());
    return rows;
  }();
  return table;
}

const Flag* find_flag(const std::vector<Flag>& table, std::string_view name) {
  const auto same = [](char a, char b) { return a == b || (a == '-' && b == '_'); };
  const auto matches = [&](std::string_view row) {
    return std::equal(row.begin(), row.end(), name.begin(), name.end(), same);
  };
  const auto begins = [&](std::string_view row) {
    row.remove_suffix(1);
    return name.size() > row.size() &&
           std::equal(row.begin(), row.end(), name.begin(), name.begin() + row.size(), same);
  };
  auto found = std::ranges::find_if(table, matches, &Flag::name);
  if (found == table.end())
    found = std::ranges::find_if(
        table, [&](std::string_view row) { return row.ends_with('*') && begins(row); },
        &Flag::name);
  return found == table.end() ? nullptr : &*found;
}

std::string suggestion(const std::vector<Flag>& table, std::string_view name,
                       std::string_view dashes) {
  std::vector<std::string_view> names;
  for (const Flag& flag : table)
    if (!flag.name.ends_with('*')) names.push_back(flag.name);
  const std::string_view meant = nearest(name, names);
  return meant.empty() ? "" : fmt::format("; did you mean '{}{}'?", dashes, meant);
}

}  // namespace trireme::convert::flags
