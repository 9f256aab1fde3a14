// Rows: the network, initial weights, dropout, precision; datasets and tokenizers.
#include "convert/flags/recipe.hpp"

namespace trireme::convert::flags {
namespace {

constexpr std::string_view kFp8Scales = "FP8 scales come from each tensor's current magnitude";
constexpr std::string_view kFused = "kernel fusion is not configured in the deck";
constexpr std::string_view kSameResult =
    "changes no result: Trireme's attention is numerically stable without it";
constexpr std::string_view kWidths =
    "layer norms, residual additions and the loss are always in fp32";
constexpr std::string_view kPadding = "padding columns of the vocabulary never enter the softmax";
constexpr std::string_view kOtherTask = "is for a model that Trireme does not train";

}  // namespace

std::vector<Flag> model_flags() {
  return {
      // Shape.
      to_key("num-layers", "model.layers"),
      to_key("encoder-num-layers", "model.layers"),
      to_key("hidden-size", "model.hidden"),
      to_key("ffn-hidden-size", "model.ffn"),
      to_key("intermediate-size", "model.ffn"),
      to_key("num-attention-heads", "model.heads"),
      to_rule("kv-channels", "model.heads"),
      to_key("seq-length", "model.sequence"),
      to_key("encoder-seq-length", "model.sequence"),
      to_key("max-position-embeddings", "model.positions"),
      to_key("max-absolute-position-embeddings", "model.positions"),
      to_key("layernorm-epsilon", "model.layernorm_eps"),
      to_key("norm-epsilon", "model.layernorm_eps"),
      turns("embed-layernorm", "model.embedding_layernorm", "true"),
      turns("untie-embeddings-and-output-weights", "model.tie_embeddings", "false"),
      turns("apply-residual-connection-post-layernorm", "model.bert.post_norm", "true"),
      turns("bert-no-binary-head", "model.bert.binary_head", "false"),
      turns("deep-init", "model.bert.deep_init", "true"),
      drop("make-vocab-size-divisible-by", kOne, kPadding),
      drop("padded-vocab-size", kOne, kPadding),
      drop("pad-vocab-size-to", kOne, kPadding),
      drop("openai-gelu", kNone, "Trireme's GELU is that formula"),
      drop("onnx-safe", kOne, "Trireme has no ONNX export"),
      drop("use-mcore-models", kNone, "Trireme has one implementation"),
      drop("use-legacy-models", kNone, "Trireme has one implementation"),
      drop("transformer-impl", kOne, "Trireme has one implementation"),
      drop("add-position-embedding", kNone, "GPT-2 has learned position embeddings"),
      to_rule("num-experts", "", Takes::several),
      drop("create-moe-param-group", kNone, "is for a mixture of experts"),
      drop("disable-moe-token-dropping", kNone, "is for a mixture of experts"),
      refuse("pretrained-bert", kNone,
             "convert the weights with 'trireme-convert hf' and load them by checkpoint.load"),
      refuse("decoder-num-layers", kOne, kOtherTask),
      drop("decoder-seq-length", kOne, "is for T5: GPT has one length, --seq-length"),
      drop("retriever-seq-length", kOne, kOtherTask),
      drop("vocab-extra-ids", kOne, kOtherTask),

      // Initial values and dropout.
      to_key("seed", "run.seed"),
      to_key("init-method-std", "model.init_std"),
      refuse("init-method-xavier-uniform", kNone,
             "initial weights are normal; give --init-method-std"),
      refuse("data-parallel-random-init", kNone,
             "all data-parallel replicas start from the same weights"),
      drop("use-cpu-initialization", kNone,
           "initial weights depend on the logical element, so they are the same on every layout"),
      drop("perform-initialization", kNone, "Trireme always initializes the weights"),
      to_key("attention-dropout", "model.dropout.attention"),
      to_key("hidden-dropout", "model.dropout.hidden"),

      // Types of numbers and loss scaling.
      to_rule("fp16", "precision.compute", kNone),
      to_rule("bf16", "precision.compute", kNone),
      to_rule("loss-scale", "precision.loss_scale.value"),
      to_rule("initial-loss-scale", "precision.loss_scale.initial"),
      to_rule("loss-scale-window", "precision.loss_scale.window"),
      to_rule("hysteresis", "precision.loss_scale.hysteresis"),
      to_rule("min-loss-scale", "precision.loss_scale.minimum"),
      to_rule("min-scale", "precision.loss_scale.minimum"),
      turns("accumulate-allreduce-grads-in-fp32", "precision.gradients", "fp32"),
      turns("fp32-allreduce", "precision.gradients", "fp32"),
      drop("dynamic-loss-scale", kNone, "the loss scale is dynamic unless --loss-scale is given"),
      drop("fp32-residual-connection", kNone, kWidths),
      to_rule("fp32-embedding", "precision.embedding", kNone),
      drop("fp32-layernorm", kNone, kWidths),
      to_rule("fp32-tokentypes", "precision.embedding", kNone),
      drop("attention-softmax-in-fp32", kNone, kWidths),
      drop("fp16-lm-cross-entropy", kNone, kWidths),
      drop("apply-query-key-layer-scaling", kNone, kSameResult),
      drop("no-query-key-layer-scaling", kNone, kSameResult),
      drop("attention-backend", kOne, "Trireme has one attention implementation"),
      drop("use-flash-attn", kNone,
           "Trireme has one attention implementation, which does not store the score matrix"),
      drop("no-masked-softmax-fusion", kNone, kFused),
      drop("abort-on-unmet-fused-kernel-constraints", kNone, kFused),
      drop("no-bias-gelu-fusion", kNone, kFused),
      drop("no-bias-dropout-fusion", kNone, kFused),
      drop("no-gradient-accumulation-fusion", kNone, kFused),
      drop("no-persist-layer-norm", kNone, kFused),
      drop("bias-gelu-fusion", kNone, kFused),
      drop("masked-softmax-fusion", kNone, kFused),
      drop("no-rope-fusion", kNone, kFused),
      drop("no-bias-swiglu-fusion", kNone, kFused),
      drop("cross-entropy-loss-fusion", kNone, kFused),
      drop("cross-entropy-fusion-impl", kOne, kFused),
      drop("te-rng-tracker", kNone, "dropout masks depend on the logical element (Philox)"),
      drop("inference-rng-tracker", kNone, "dropout masks depend on the logical element (Philox)"),
      to_rule("fp8-format", "precision.gemm"),
      to_rule("fp8-hybrid", "precision.gemm", kNone),
      to_rule("fp8-e4m3", "precision.gemm", kNone),
      to_rule("fp8-recipe", "precision.fp8.recipe"),
      to_rule("first-last-layers-bf16", "precision.fp8.first_layers", kNone),
      to_rule("num-layers-at-start-in-bf16", "precision.fp8.first_layers"),
      to_rule("num-layers-at-end-in-bf16", "precision.fp8.last_layers"),
      drop("fp8-margin", kOne, kFp8Scales),
      drop("fp8-interval", kOne, kFp8Scales),
      drop("fp8-amax-history-len", kOne, kFp8Scales),
      drop("fp8-amax-compute-algo", kOne, kFp8Scales),
      drop("fp8-param-gather", kNone, "changes no result: weights are gathered in 16 bits"),
      refuse("no-fp8-wgrad", kNone,
             "with precision.gemm: fp8 the GEMMs of weight gradients are in FP8; remove it"),
      refuse("fp8-quantizer-factory", kOne, "Trireme has the recipes tensorwise and blockwise"),
  };
}

namespace {

constexpr std::string_view kPreprocess =
    "trireme-preprocess tokenizes documents once, before training";
constexpr std::string_view kLoader = "samples are read through a memory-mapped file";
constexpr std::string_view kRanges =
    "the deck has no key for ranges of datasets; give --data-path WEIGHT PREFIX ... and --split";

}  // namespace

std::vector<Flag> data_flags() {
  return {
      to_rule("data-path", "data.train", kSeveral),
      to_rule("train-data-path", "data.train", kSeveral),
      to_rule("train-data", "data.train", kSeveral),
      to_rule("valid-data-path", "data.valid", kSeveral),
      to_rule("val-data-path", "data.valid", kSeveral),
      to_rule("valid-data", "data.valid", kSeveral),
      to_rule("test-data-path", "data.test", kSeveral),
      to_rule("test-data", "data.test", kSeveral),
      refuse("train-weighted-split-paths", kSeveral, kRanges),
      refuse("valid-weighted-split-paths", kSeveral, kRanges),
      refuse("test-weighted-split-paths", kSeveral, kRanges),
      refuse("train-weighted-split-paths-path", kOne, kRanges),
      refuse("valid-weighted-split-paths-path", kOne, kRanges),
      refuse("test-weighted-split-paths-path", kOne, kRanges),
      drop("mock-data", kNone,
           "Trireme has no mock data: make a small dataset with trireme-preprocess"),
      to_rule("split", "data.split"),
      to_key("data-cache-path", "data.index_cache"),
      turns("reset-position-ids", "data.reset_positions", "true"),
      turns("reset-attention-mask", "data.reset_attention", "true"),
      turns("eod-mask-loss", "data.eod_loss", "false"),
      to_key("mask-prob", "data.bert.mask_probability"),
      to_key("short-seq-prob", "data.bert.short_sequence"),
      to_key("max-preds-per-seq", "data.bert.max_predictions"),

      to_rule("tokenizer-type", "data.tokenizer.type"),
      to_rule("vocab-file", "data.tokenizer.vocab"),
      to_rule("merge-file", "data.tokenizer.merges"),
      to_rule("tokenizer-model", "data.tokenizer.model"),
      to_rule("vocab-size", "model.vocab"),
      refuse("tokenizer-name-or-path", kOne,
             "give the files of the vocabulary: --vocab-file and --merge-file"),
      refuse("tokenizer-file", kOne,
             "give the files of the vocabulary: --vocab-file and --merge-file"),
      to_rule("tokenizer-path", "data.tokenizer.model"),
      drop("tokenizer-model-type", kOne, "the vocabulary file determines it"),
      drop("cache-dir", kOne, "Trireme reads tokenizer files directly"),

      drop("data-impl", kOne, kLoader),
      drop("mmap-warmup", kNone, kLoader),
      drop("no-mmap-bin-files", kNone, kLoader),
      drop("num-workers", kOne, kLoader),
      drop("valid-num-workers", kOne, kLoader),
      drop("num-dataset-builder-threads", kOne, "the sample index is built in parallel"),
      drop("no-create-attention-mask-in-dataloader", kNone, kLoader),
      drop("lazy-loader", kNone, kPreprocess),
      drop("loose-json", kNone, kPreprocess),
      drop("text-key", kOne, kPreprocess),
      drop("delim", kOne, kPreprocess),
      drop("presplit-sentences", kNone, kPreprocess),
      to_rule("use-tfrecords", "data.bert.dialect", kNone),
      drop("use-npy-data-loader", kNone, kPreprocess),
      drop("input-data-sizes-file", kOne, kPreprocess),
      drop("shuffle", kNone, "samples are always shuffled, with data.seed"),
      to_rule("dataloader-type", ""),
      refuse("sample-rate", kOne, "Trireme uses every sample"),
      refuse("loss-on-targets-only", kNone, "the loss covers all tokens"),
      refuse("reweight-loss-based-on-position-frequency", kNone, "the loss covers all tokens"),
  };
}

}  // namespace trireme::convert::flags
