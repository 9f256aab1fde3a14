// A model as data: what a family (families/) makes of a deck, and what the layers are made from.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "deck/choices.hpp"
#include "deck/model.hpp"
#include "model/parameters/table.hpp"

namespace trireme::model {

/// A normalization over the hidden axis. `kind` is one of norm_kinds().
struct NormSpec {
  std::string kind = "layernorm";
  double eps = 1e-5;
};

using deck::InitScheme, deck::NormPlacement, deck::PositionScaling, deck::QkNorm;

/// Self-attention. Weights: q, k, v fused [(heads + 2 kv_heads) head_dim, hidden], then the output
/// projection [hidden, heads head_dim].
struct AttentionSpec {
  std::int64_t heads = 1;     ///< query heads
  std::int64_t kv_heads = 1;  ///< key and value heads
  std::int64_t head_dim = 1;
  bool causal = true;  ///< a token sees no later one
  bool qkv_bias = true;
  bool output_bias = true;
  QkNorm qk_norm = QkNorm::none;
  double qk_norm_eps = 1e-5;
  bool rotary = false;       ///< queries and keys are rotated by EmbeddingSpec::rotary
  std::int64_t window = 0;   ///< a token sees so many, itself included; 0: all earlier ones
  double query_scale = 1.0;  ///< of rotated queries: scores are q k^T query_scale / sqrt(head_dim)
  double dropout = 0.0;      ///< of the attention probabilities

  /// Key and value heads on each of `tensor_ranks`. At least one: with more ranks than heads
  /// several hold a copy of the head that their query heads share. Throws InternalError where
  /// neither number is a multiple of the other.
  std::int64_t local_kv_heads(int tensor_ranks) const {
    return kv_heads / RowBlock(kv_heads, static_cast<int>(kv_heads)).shards(tensor_ranks);
  }
};

/// The feed-forward sublayer. `kind` is one of mlp_kinds().
struct MlpSpec {
  std::string kind = "gelu";
  std::int64_t width = 4;  ///< of the hidden activations
};

/// A transformer block: attention, then MLP, each with a norm and a residual connection.
struct BlockSpec {
  NormSpec norm;
  NormPlacement norm_placement = NormPlacement::pre;
  AttentionSpec attention;
  MlpSpec mlp;
  double dropout = 0.0;     ///< of each sublayer's output
  bool fp8 = true;          ///< its linears follow Precision::gemm where that is FP8
  bool fp8_blocks = false;  ///< their operands then have a scale for each block, not for the tensor
};

/// How tokens learn their positions: a learned embedding that is added, or rotated queries and
/// keys.
enum class PositionKind { learned, rotary };

/// Rotary positions: pair i of a head of d elements turns by position theta^(-2 i / d), scaled.
struct RotarySpec {
  double theta = 10000.0;
  PositionScaling scaling = PositionScaling::none;
  double factor = 1.0;       ///< of the longer context
  double original = 8192.0;  ///< the context of the training before, in tokens
  /// llama3: frequencies with fewer turns than `low` in the original context are divided by
  /// `factor`, those with more than `high` are kept. YaRN: the same (its beta_slow and beta_fast),
  /// with a ramp between them over the pairs.
  double low = 1.0;
  double high = 4.0;
};

/// From token ids to the first block's input.
struct EmbeddingSpec {
  PositionKind position = PositionKind::learned;
  std::int64_t positions = 1;             ///< the longest context
  RotarySpec rotary = {};                 ///< with PositionKind::rotary
  std::int64_t token_types = 0;           ///< rows of a token-type embedding
  std::optional<NormSpec> norm;           ///< of the token embedding
  std::optional<NormSpec> sum_norm = {};  ///< of the sum of all embeddings, before dropout
  double dropout = 0.0;
  double scale = 1.0;  ///< of the output
};

/// From the last block's output to the loss: the cross entropy of each token's label, and with
/// `sentence_classes` that of each sample's sentence label.
struct HeadSpec {
  std::optional<NormSpec> norm;  ///< of the last block's output; none where blocks end with a norm
  bool tied = true;              ///< the output projection is the token embedding
  double logit_scale = 1.0;      ///< of the output projection's input
  /// Coefficient of the mean of each token's squared log-sum-exp in the loss that is trained. It is
  /// not part of losses that are reported.
  double z_loss = 0.0;
  /// Between that and the output projection: a linear layer, the exact GELU and this norm (BERT).
  std::optional<NormSpec> transform = {};
  bool output_bias = false;  ///< the output projection has a bias [V]
  /// Classes of a linear classifier of each sample, which reads the pooled first token: a linear
  /// layer and tanh. 0: no classifier.
  std::int64_t sentence_classes = 0;
  /// The most tokens of a sample that have labels: the output projection reads only these. 0: all
  /// may have one.
  std::int64_t max_labels = 0;
};

/// What the ends of documents within a sample mean.
struct DocumentSpec {
  bool reset_positions = false;     ///< positions start again after each `eod`
  bool reset_attention = false;     ///< attention stays within a document
  std::optional<std::int32_t> eod;  ///< ends a document; needed where one of the two is true
};

/// How initial weights are drawn: from a normal distribution with mean 0.
struct InitSpec {
  double deviation = 0.02;
  /// Of embeddings and the output projection; unset: deviation.
  std::optional<double> embedding = {};
  InitScheme outputs = InitScheme::scaled;  ///< gives output_deviation()
  /// Standard deviations beyond which the distribution is truncated; 0: it is not.
  double cutoff = 0.0;

  double embedding_deviation() const { return embedding.value_or(deviation); }
  /// Of the weights that end a sublayer of layer `layer` of `layers`.
  double output_deviation(int layer, std::int64_t layers) const;
};

/// That of a deck's model, without muP.
InitSpec init_spec(const deck::Model& model);

/// A whole model and how it is initialized.
struct ModelSpec {
  std::int64_t hidden = 1;
  std::int64_t sequence = 1;  ///< tokens per sample
  std::int64_t vocab = 1;
  EmbeddingSpec embedding;
  std::vector<BlockSpec> blocks;
  HeadSpec head;
  DocumentSpec documents;
  bool padding = false;  ///< samples may end in padding, which attention skips
  InitSpec init;
  std::uint64_t seed = 1234;  ///< of the initial weights and of dropout

  /// The window of all blocks' attention; 0: none, or as long as a sequence.
  std::int64_t window() const { return blocks.empty() ? 0 : blocks.front().attention.window; }
  /// Whether attention begins later than at a sample's first token.
  bool has_first_keys() const {
    return documents.reset_attention || (window() > 0 && window() < sequence);
  }
  /// Whether anything is dropped in training.
  bool has_dropout() const;

  std::int64_t layers() const { return static_cast<std::int64_t>(blocks.size()); }
};

/// Throws DeckError that names the value for a spec that the layers do not implement.
void require_implemented(const ModelSpec& spec);

/// The parameter table: what the layers of `spec` declare, in checkpoint order: embedding, blocks,
/// head. Throws as require_implemented().
std::vector<Parameter> declare_parameters(const ModelSpec& spec);

}  // namespace trireme::model
