// The choices of the deck: the one enumeration of each, for all modules that act on it, and its
// words.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace trireme::deck {

enum class Device { automatic, host, cuda };
enum class Family { gpt, bert, llama };
/// Where a block normalizes: the input of each sublayer; its output before the residual sum
/// (OLMo-2); or that sum (BERT, where `model.bert.post_norm` says so).
enum class NormPlacement { pre, output, post };
enum class GatedActivation { swiglu, geglu };
enum class LinearBias { none, qkv };
/// Which part of queries and keys is normalized before attention: nothing, each head, or all heads
/// of a token together.
enum class QkNorm { none, head, width };
enum class InitScheme { scaled, depth, normal };
/// How the frequencies of rotary positions are stretched to contexts longer than those of the
/// training before: all by the same factor; by wavelength, as in Llama 3.1; or by YaRN.
enum class PositionScaling { none, linear, llama3, yarn };
enum class PipelineSchedule { one_f_one_b, interleaved, zero_bubble };
enum class Compute { fp32, bf16, fp16 };
enum class EmbeddingPrecision { same, fp32 };
enum class GradientPrecision { fp32, same };
enum class GemmPrecision { same, fp8 };
enum class Fp8Recipe { tensor, block };
enum class Fp8Type { e4m3, e5m2 };
enum class Granularity { none, selective, full };
enum class RecomputeMethod { uniform, block };
enum class OptimizerType { adamw, adam, sgd, lamb, muon };
enum class MuonScale { match_rms, spectral };
enum class ScheduleType {
  cosine,
  linear,
  constant,
  exponential,
  inverse_square_root,
  lr_range_test,
  wsd
};
enum class WsdShape { linear, cosine, exponential, minus_sqrt };
enum class ScheduleDialect { megatron, v1 };
enum class RampType { constant, linear, cosine };
enum class LossScaleDialect { megatron, deepspeed };
enum class TokenizerType { gpt2, bpe, sentencepiece, wordpiece, encdec, whitespace, bytes };
enum class BertDialect { megatron, v0, tfrecord };
enum class SentenceTask { order, next, none };
enum class TensorboardDialect { trireme, megatron, bigscience };
enum class ConsoleLine { brief, megatron };
enum class LogNorms { none, total, layers };

/// The words of each enumeration as the deck writes them, in the order of the enumerators.
constexpr auto names_of(Device) {
  return std::to_array<std::string_view>({"auto", "host", "cuda"});
}
constexpr auto names_of(Family) {
  return std::to_array<std::string_view>({"gpt", "bert", "llama"});
}
constexpr auto names_of(NormPlacement) {
  return std::to_array<std::string_view>({"pre", "output", "post"});
}
constexpr auto names_of(GatedActivation) {
  return std::to_array<std::string_view>({"swiglu", "geglu"});
}
constexpr auto names_of(LinearBias) { return std::to_array<std::string_view>({"none", "qkv"}); }
constexpr auto names_of(QkNorm) {
  return std::to_array<std::string_view>({"none", "head", "width"});
}
constexpr auto names_of(InitScheme) {
  return std::to_array<std::string_view>({"scaled", "depth", "normal"});
}
constexpr auto names_of(PositionScaling) {
  return std::to_array<std::string_view>({"none", "linear", "llama3", "yarn"});
}
constexpr auto names_of(PipelineSchedule) {
  return std::to_array<std::string_view>({"1f1b", "interleaved", "zero-bubble"});
}
constexpr auto names_of(Compute) {
  return std::to_array<std::string_view>({"fp32", "bf16", "fp16"});
}
constexpr auto names_of(EmbeddingPrecision) {
  return std::to_array<std::string_view>({"same", "fp32"});
}
constexpr auto names_of(GradientPrecision) {
  return std::to_array<std::string_view>({"fp32", "same"});
}
constexpr auto names_of(GemmPrecision) { return std::to_array<std::string_view>({"same", "fp8"}); }
constexpr auto names_of(Fp8Recipe) { return std::to_array<std::string_view>({"tensor", "block"}); }
constexpr auto names_of(Fp8Type) { return std::to_array<std::string_view>({"e4m3", "e5m2"}); }
constexpr auto names_of(Granularity) {
  return std::to_array<std::string_view>({"none", "selective", "full"});
}
constexpr auto names_of(RecomputeMethod) {
  return std::to_array<std::string_view>({"uniform", "block"});
}
constexpr auto names_of(OptimizerType) {
  return std::to_array<std::string_view>({"adamw", "adam", "sgd", "lamb", "muon"});
}
constexpr auto names_of(MuonScale) {
  return std::to_array<std::string_view>({"match-rms", "spectral"});
}
constexpr auto names_of(ScheduleType) {
  return std::to_array<std::string_view>({"cosine", "linear", "constant", "exponential",
                                          "inverse-square-root", "lr-range-test", "wsd"});
}
constexpr auto names_of(WsdShape) {
  return std::to_array<std::string_view>({"linear", "cosine", "exponential", "minus-sqrt"});
}
constexpr auto names_of(ScheduleDialect) {
  return std::to_array<std::string_view>({"megatron", "v1"});
}
constexpr auto names_of(RampType) {
  return std::to_array<std::string_view>({"constant", "linear", "cosine"});
}
constexpr auto names_of(LossScaleDialect) {
  return std::to_array<std::string_view>({"megatron", "deepspeed"});
}
constexpr auto names_of(TokenizerType) {
  return std::to_array<std::string_view>(
      {"gpt2", "bpe", "sentencepiece", "wordpiece", "encdec", "whitespace", "bytes"});
}
constexpr auto names_of(BertDialect) {
  return std::to_array<std::string_view>({"megatron", "v0", "tfrecord"});
}
constexpr auto names_of(SentenceTask) {
  return std::to_array<std::string_view>({"order", "next", "none"});
}
constexpr auto names_of(TensorboardDialect) {
  return std::to_array<std::string_view>({"trireme", "megatron", "bigscience"});
}
constexpr auto names_of(ConsoleLine) {
  return std::to_array<std::string_view>({"short", "megatron"});
}
constexpr auto names_of(LogNorms) {
  return std::to_array<std::string_view>({"false", "true", "layers"});
}

/// Whether a restart may change a key.
enum class RestartRule {
  free,       ///< yes: output cadence, limits, names
  warn,       ///< yes, with a warning: it changes how training continues, or the layout
  immutable,  ///< no: model shape, tokenizer, seed, order of the data
};

constexpr auto names_of(RestartRule) {
  return std::to_array<std::string_view>({"free", "warn", "immutable"});
}

/// The word of one enumerator: name_of(Device::automatic) is "auto".
template <typename Enum>
constexpr std::string_view name_of(Enum value) {
  return names_of(value)[static_cast<std::size_t>(value)];
}

}  // namespace trireme::deck
