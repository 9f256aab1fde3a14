#include "deck/keys/schema.hpp"

#include <algorithm>
#include <cctype>
#include <utility>

namespace trireme::deck {
namespace {

constexpr std::string_view kAccumulation =
    "batch.global = batch.micro * data ranks * accumulation steps";
constexpr std::string_view kWandb =
    "not supported: metrics.jsonl and tensorboard/ in the run folder hold all figures";
constexpr std::string_view kFlash = "attention is always a fused kernel; there is no key for it";
constexpr std::string_view kExperts =
    "not supported: models are dense; Megatron-LM, torchtitan and nanotron have mixtures of "
    "experts";
constexpr std::string_view kLora =
    "not supported: all weights are trained; 'trireme-convert hf' takes a model to Hugging Face's "
    "peft";
constexpr std::string_view kContext =
    "not supported: parallel.sequence and recompute.granularity save memory of long sequences";
constexpr std::string_view kCompile = "not needed: the kernels are compiled with the program";

const std::vector<Synonym> kSynonyms = {
    // model
    {"num_layers", "model.layers", ""},
    {"n_layer", "model.layers", ""},
    {"n_layers", "model.layers", ""},
    {"num_hidden_layers", "model.layers", ""},
    {"depth", "model.layers", ""},
    {"hidden_size", "model.hidden", ""},
    {"n_embd", "model.hidden", ""},
    {"d_model", "model.hidden", ""},
    {"dim", "model.hidden", ""},
    {"width", "model.hidden", ""},
    {"num_attention_heads", "model.heads", ""},
    {"n_head", "model.heads", ""},
    {"n_heads", "model.heads", ""},
    {"num_heads", "model.heads", ""},
    {"ffn_hidden_size", "model.ffn", ""},
    {"intermediate_size", "model.ffn", ""},
    {"n_inner", "model.ffn", ""},
    {"d_ff", "model.ffn", ""},
    {"seq_length", "model.sequence", ""},
    {"seq_len", "model.sequence", ""},
    {"sequence_length", "model.sequence", ""},
    {"max_seq_len", "model.sequence", ""},
    {"context_length", "model.sequence", ""},
    {"block_size", "model.sequence", ""},
    {"max_position_embeddings", "model.positions", ""},
    {"n_positions", "model.positions", ""},
    {"vocab_size", "model.vocab", ""},
    {"attention_dropout", "model.dropout.attention", ""},
    {"attn_pdrop", "model.dropout.attention", ""},
    {"hidden_dropout", "model.dropout.hidden", ""},
    {"resid_pdrop", "model.dropout.hidden", ""},
    {"embd_pdrop", "model.dropout.hidden", ""},
    {"init_method_std", "model.init_std", ""},
    {"initializer_range", "model.init_std", ""},
    {"layernorm_epsilon", "model.layernorm_eps", ""},
    {"norm_epsilon", "model.layernorm_eps", ""},
    {"norm_eps", "model.layernorm_eps", ""},
    {"embed_layernorm", "model.embedding_layernorm", ""},
    {"tie_word_embeddings", "model.tie_embeddings", ""},
    {"untie_embeddings_and_output_weights", "model.tie_embeddings", ""},
    {"flash", "", kFlash},
    {"flash_attn", "", kFlash},
    {"flash_attention", "", kFlash},
    {"use_flash_attn", "", kFlash},
    {"sdpa", "", kFlash},
    {"moe", "", kExperts},
    {"mixture_of_experts", "", kExperts},
    {"num_experts", "", kExperts},
    {"lora", "", kLora},
    {"peft", "", kLora},
    {"context_parallel", "", kContext},
    {"cp", "", kContext},
    {"context_parallel_size", "", kContext},
    {"compile", "", kCompile},
    {"torch_compile", "", kCompile},
    // layout
    {"tp", "parallel.tensor", ""},
    {"tp_size", "parallel.tensor", ""},
    {"tensor_parallel", "parallel.tensor", ""},
    {"tensor_parallel_size", "parallel.tensor", ""},
    {"tensor_model_parallel_size", "parallel.tensor", ""},
    {"model_parallel_size", "parallel.tensor", ""},
    {"pp", "parallel.pipeline", ""},
    {"pp_size", "parallel.pipeline", ""},
    {"pipeline_parallel", "parallel.pipeline", ""},
    {"pipeline_parallel_size", "parallel.pipeline", ""},
    {"pipeline_model_parallel_size", "parallel.pipeline", ""},
    {"dp", "parallel.data", "auto takes all ranks"},
    {"dp_size", "parallel.data", "auto takes all ranks"},
    {"data_parallel", "parallel.data", "auto takes all ranks"},
    {"data_parallel_size", "parallel.data", "auto takes all ranks"},
    {"ddp", "parallel.data", "auto takes all ranks"},
    {"world_size", "parallel.data", "mpirun -n N or srun -n N starts N ranks"},
    {"sp", "parallel.sequence", ""},
    {"sequence_parallel", "parallel.sequence", ""},
    {"virtual_pipeline", "parallel.interleave", ""},
    {"virtual_pipeline_model_parallel_size", "parallel.interleave", ""},
    {"num_layers_per_virtual_pipeline_stage", "parallel.interleave", ""},
    {"pipeline_schedule", "parallel.schedule", ""},
    {"balance", "parallel.partition", ""},
    {"fsdp", "parallel.zero", "stage 3 shards weights"},
    {"zero_stage", "parallel.zero", ""},
    {"zero1", "parallel.zero", ""},
    {"zero2", "parallel.zero", ""},
    {"zero3", "parallel.zero", ""},
    {"hsdp", "parallel.zero", ""},
    {"zero_optimization", "parallel.zero", ""},
    {"distributed_optimizer", "parallel.zero", "stage 1 shards optimizer state"},
    {"use_distributed_optimizer", "parallel.zero", "stage 1 shards optimizer state"},
    {"reduce_bucket_size", "parallel.bucket", ""},
    {"bucket_size", "parallel.bucket", ""},
    {"overlap_comm", "parallel.overlap.gradients", ""},
    {"overlap_grad_reduce", "parallel.overlap.gradients", ""},
    {"overlap_param_gather", "parallel.overlap.parameters", ""},
    // batches and precision
    {"micro_batch_size", "batch.micro", ""},
    {"mbs", "batch.micro", ""},
    {"batch_size", "batch.micro", "batch.global counts all data ranks"},
    {"per_device_train_batch_size", "batch.micro", ""},
    {"train_micro_batch_size_per_gpu", "batch.micro", ""},
    {"global_batch_size", "batch.global", ""},
    {"gbs", "batch.global", ""},
    {"train_batch_size", "batch.global", ""},
    {"grad_accumulation", "batch.global", kAccumulation},
    {"grad_accum", "batch.global", kAccumulation},
    {"gradient_accumulation", "batch.global", kAccumulation},
    {"gradient_accumulation_steps", "batch.global", kAccumulation},
    {"accumulation_steps", "batch.global", kAccumulation},
    {"rampup_batch_size", "batch.rampup", ""},
    {"dtype", "precision.compute", ""},
    {"bf16", "precision.compute", ""},
    {"fp16", "precision.compute", ""},
    {"mixed_precision", "precision.compute", ""},
    {"amp", "precision.compute", ""},
    {"autocast", "precision.compute", ""},
    {"accumulate_allreduce_grads_in_fp32", "precision.gradients", ""},
    {"grad_reduce_in_bf16", "precision.gradients", ""},
    {"initial_loss_scale", "precision.loss_scale.initial", ""},
    {"grad_scaler", "precision.loss_scale", ""},
    // recomputation
    {"recompute_granularity", "recompute.granularity", ""},
    {"recompute_activations", "recompute.granularity", ""},
    {"activation_checkpointing", "recompute.granularity", ""},
    {"checkpoint_activations", "recompute.granularity", ""},
    {"gradient_checkpointing", "recompute.granularity", ""},
    {"recompute_num_layers", "recompute.layers", ""},
    {"checkpoint_num_layers", "recompute.layers", ""},
    {"distribute_saved_activations", "recompute.partition", ""},
    {"partition_activations", "recompute.partition", ""},
    {"checkpoint_in_cpu", "recompute.offload", ""},
    {"cpu_checkpointing", "recompute.offload", ""},
    // optimizer and learning rate
    {"optim", "optimizer.type", ""},
    {"adam_beta1", "optimizer.beta1", ""},
    {"adam_beta2", "optimizer.beta2", ""},
    {"betas", "optimizer.beta1", "and optimizer.beta2"},
    {"adam_eps", "optimizer.eps", ""},
    {"epsilon", "optimizer.eps", ""},
    {"clip_grad", "optimizer.clip", ""},
    {"grad_clip", "optimizer.clip", ""},
    {"max_grad_norm", "optimizer.clip", ""},
    {"gradient_clipping", "optimizer.clip", ""},
    {"wd", "optimizer.weight_decay", ""},
    {"lr", "schedule.peak", ""},
    {"max_lr", "schedule.peak", ""},
    {"peak_lr", "schedule.peak", ""},
    {"learning_rate", "schedule.peak", ""},
    {"min_lr", "schedule.minimum", ""},
    {"minimum_lr", "schedule.minimum", ""},
    {"warmup_steps", "schedule.warmup", ""},
    {"warmup_iters", "schedule.warmup", ""},
    {"warmup_ratio", "schedule.warmup", "a fraction of the decay"},
    {"warmup_fraction", "schedule.warmup", "a fraction of the decay"},
    {"num_warmup_steps", "schedule.warmup", ""},
    {"lr_warmup_steps", "schedule.warmup", ""},
    {"lr_warmup_iters", "schedule.warmup", ""},
    {"lr_warmup_samples", "schedule.warmup", ""},
    {"lr_warmup_fraction", "schedule.warmup", "a fraction of the decay"},
    {"decay_steps", "schedule.decay", ""},
    {"lr_decay_iters", "schedule.decay", ""},
    {"lr_decay_steps", "schedule.decay", ""},
    {"lr_decay_samples", "schedule.decay", ""},
    {"lr_decay_style", "schedule.type", ""},
    {"lr_scheduler", "schedule.type", ""},
    {"lr_scheduler_type", "schedule.type", ""},
    {"scheduler", "schedule.type", ""},
    // data
    {"data_path", "data.train", ""},
    {"train_data", "data.train", ""},
    {"train_data_path", "data.train", ""},
    {"dataset", "data.train", ""},
    {"valid_data_path", "data.valid", ""},
    {"test_data_path", "data.test", ""},
    {"tokenizer_type", "data.tokenizer.type", ""},
    {"tokenizer_model", "data.tokenizer.model", ""},
    {"vocab_file", "data.tokenizer.vocab", ""},
    {"do_lower_case", "data.tokenizer.lowercase", ""},
    {"merge_file", "data.tokenizer.merges", ""},
    {"merges_file", "data.tokenizer.merges", ""},
    {"reset_position_ids", "data.reset_positions", ""},
    {"reset_attention_mask", "data.reset_attention", ""},
    {"eod_mask_loss", "data.eod_loss", "false masks the loss at document ends"},
    // the run
    {"train_iters", "train.iterations", ""},
    {"train_steps", "train.iterations", ""},
    {"max_iters", "train.iterations", ""},
    {"max_steps", "train.iterations", ""},
    {"num_steps", "train.iterations", ""},
    {"total_steps", "train.iterations", ""},
    {"num_iterations", "train.iterations", ""},
    {"steps", "train.iterations", ""},
    {"epochs", "train.iterations", "--check prints the epochs that they are"},
    {"num_train_epochs", "train.iterations", "--check prints the epochs that they are"},
    {"train_samples", "train.samples", ""},
    {"train_tokens", "train.samples", "tokens / model.sequence"},
    {"exit_duration_in_mins", "train.exit_duration", "or the option --time-limit"},
    {"kill_switch_path", "train.kill_switch", ""},
    {"skip_train_iteration_range", "train.skip", ""},
    {"eval_interval", "evaluate.every", ""},
    {"eval_every", "evaluate.every", ""},
    {"eval_iters", "evaluate.iterations", ""},
    {"eval_tasks", "evaluate.tasks", ""},
    {"lm_eval_tasks", "evaluate.tasks", ""},
    {"downstream_tasks", "evaluate.tasks", ""},
    {"save_interval", "checkpoint.every", ""},
    {"save_every", "checkpoint.every", ""},
    {"save_steps", "checkpoint.every", ""},
    {"checkpoint_interval", "checkpoint.every", ""},
    {"save_total_limit", "checkpoint.keep", ""},
    {"async_save", "checkpoint.async", ""},
    {"load", "checkpoint.load", "the same command resumes its own run without it"},
    {"resume", "checkpoint.load", "the same command resumes its own run without it"},
    {"resume_from_checkpoint", "checkpoint.load",
     "the same command resumes its own run without it"},
    {"save", "run.output", ""},
    {"save_dir", "run.output", ""},
    {"output_dir", "run.output", ""},
    {"out_dir", "run.output", ""},
    {"log_interval", "log.every", ""},
    {"logging_steps", "log.every", ""},
    {"log_freq", "log.every", ""},
    {"tensorboard_dir", "log.tensorboard.enable", "the files are in run.output/tensorboard"},
    {"timing_log_level", "log.timers", ""},
    {"log_params_norm", "log.norms", ""},
    {"wandb", "", kWandb},
    {"wandb_project", "", kWandb},
    {"mlflow", "", kWandb},
    {"distributed_timeout_minutes", "comm.timeout", ""},
    {"nccl_timeout", "comm.timeout", ""},
    {"gpu", "run.device", ""},
    {"cpu", "run.device", ""},
};

/// Values: what others write, and the deck's word.
constexpr std::pair<std::string_view, std::string_view> kValues[] = {
    {"bfloat16", "bf16"},
    {"torchbfloat16", "bf16"},
    {"bf16mixed", "bf16"},
    {"float16", "fp16"},
    {"torchfloat16", "fp16"},
    {"half", "fp16"},
    {"float32", "fp32"},
    {"torchfloat32", "fp32"},
    {"float", "fp32"},
    {"single", "fp32"},
    {"gpu", "cuda"},
    {"cpu", "host"},
    {"gpt2", "gpt"},
    {"gpt3", "gpt"},
    {"gpt2bpetokenizer", "gpt2"},
    {"gpt2tokenizer", "gpt2"},
    {"tiktoken", "bpe"},
    {"tiktokentokenizer", "bpe"},
    {"huggingface", "bpe"},
    {"huggingfacetokenizer", "bpe"},
    {"hf", "bpe"},
    {"tokenizer.json", "bpe"},
    {"bytelevelbpe", "bpe"},
    {"llama3", "bpe"},
    {"sentencepiecetokenizer", "sentencepiece"},
    {"gptsentencepiecetokenizer", "sentencepiece"},
    {"spm", "sentencepiece"},
    {"unigram", "sentencepiece"},
    {"bertwordpiecelowercase", "wordpiece"},
    {"bertwordpiececase", "wordpiece"},
    {"byte", "bytes"},
    {"fusedadam", "adamw"},
    {"gpipe", "1f1b"},
    {"pipedream", "1f1b"},
    {"zb", "zero-bubble"},
    {"zbh1", "zero-bubble"},
    {"invsqrt", "inverse-square-root"},
    {"rsqrt", "inverse-square-root"},
};

}  // namespace

std::string plain_name(std::string_view name) {
  std::string plain;
  for (const char c : name)
    if (c != '-' && c != '_' && c != ' ' && c != '.')
      plain += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return plain;
}

const std::vector<Synonym>& synonyms() { return kSynonyms; }

const Synonym* find_synonym(std::string_view name) {
  const std::string plain = plain_name(name);
  const auto match = std::find_if(kSynonyms.begin(), kSynonyms.end(), [&](const Synonym& synonym) {
    return plain_name(synonym.name) == plain;
  });
  return match == kSynonyms.end() ? nullptr : &*match;
}

std::string_view synonymous_value(std::string_view text,
                                  const std::vector<std::string_view>& words) {
  const std::string plain = plain_name(text);
  for (const auto& [theirs, ours] : kValues)
    if (theirs == plain && std::find(words.begin(), words.end(), ours) != words.end()) return ours;
  return {};
}

}  // namespace trireme::deck
