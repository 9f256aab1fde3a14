// Rows: datasets and tokenizers.
#include "convert/flags/table/flag.hpp"

namespace trireme::convert::flags {
namespace {

constexpr auto kOne = Takes::one;
constexpr auto kNone = Takes::nothing;
constexpr auto kSeveral = Takes::several;

constexpr std::string_view kPreprocess = "documents are tokenized once, by trireme-preprocess";
constexpr std::string_view kLoader = "samples are read by memory mapping";
constexpr std::string_view kRanges =
    "there is no key for parts of datasets; give --data-path weight prefix ... and --split";

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
      drop("mock-data", kNone, "there is no made-up data: trireme-preprocess makes a dataset"),
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
      drop("tokenizer-model-type", kOne, "the vocabulary's file says it"),
      drop("cache-dir", kOne, "where a tokenizer was cached"),

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
      drop("use-tfrecords", kNone, kPreprocess),
      drop("use-npy-data-loader", kNone, kPreprocess),
      drop("input-data-sizes-file", kOne, kPreprocess),
      drop("shuffle", kNone, "samples are always shuffled, by data.seed"),
      to_rule("dataloader-type", ""),
      refuse("fim-rate", kOne, "documents are read from left to right"),
      refuse("sample-rate", kOne, "every sample is taken"),
      refuse("loss-on-targets-only", kNone, "the loss is of all tokens"),
      refuse("reweight-loss-based-on-position-frequency", kNone, "the loss is of all tokens"),
  };
}

}  // namespace trireme::convert::flags
