// Checkpoints of Megatron-LM and DeepSpeed as shards of logical tensors.
//
// A folder holds a file for each tensor and pipeline rank. The readers (megatron.cpp,
// deepspeed.cpp, distributed.cpp) find the files, translate the names of their
// tensors to Trireme's logical names and note the tensor rank of each shard; assemble() joins the
// shards of one logical tensor.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "convert/torch/archive.hpp"
#include "model/parameters/table.hpp"

namespace trireme::convert::megatron {

/// A tensor rank's shard of a logical tensor: in a file, or elements already read.
struct Shard {
  const torch::Archive* archive = nullptr;
  torch::Tensor tensor;       ///< of `archive`
  std::vector<float> values;  ///< without an archive
  std::vector<std::int64_t> shape;

  std::vector<float> read() const { return archive ? archive->read(tensor) : values; }
};

/// Shards by tensor rank, of each logical tensor by name.
using Tensors = std::map<std::string, std::vector<Shard>>;

/// Adds the shard of tensor rank `rank`, unless it is there: the last stage has a copy of a tied
/// tensor.
void add_shard(Tensors& tensors, const std::string& name, int rank, Shard shard);

/// The order of the rows of a tensor rank's query-key-value projection, with np heads of hn rows:
/// checkpoint versions 0, 1, and 2 or newer (Megatron-LM, fix_query_key_value_ordering).
enum class QkvOrder { split_head_row, head_row_split, head_split_row };

/// A checkpoint of another trainer.
struct Foreign {
  std::vector<std::unique_ptr<torch::Archive>> archives;
  std::filesystem::path folder;             ///< of the iteration
  const torch::Value* arguments = nullptr;  ///< Megatron's args; null if the checkpoint has none
  std::int64_t iteration = 0;
  std::optional<std::int64_t> consumed_samples;
  /// The position of the learning-rate schedule, in samples (since 2.0) or iterations.
  std::optional<std::int64_t> schedule_samples, schedule_iterations;
  QkvOrder qkv = QkvOrder::head_split_row;
  bool norms_less_one = false;  ///< norms' weights are stored less 1 (--apply-layernorm-1p)
  Tensors weights;              ///< as the model computes with them, often 16-bit
  Tensors masters;  ///< fp32 copies of the optimizer; empty or one for each of `weights`
  Tensors m, v;     ///< Adam's moments; empty or one for each of `weights`
  std::int64_t optimizer_steps = 0;  ///< updates that Adam has applied
  std::optional<double> loss_scale;
  std::vector<std::string> unread;  ///< what the checkpoint has and Trireme does not read

  /// Leaves out the optimizer's state, `problem` being why it cannot be read.
  void drop_optimizer(const std::string& problem) {
    unread.push_back("the optimizer's state: " + problem);
    masters.clear();
    m.clear();
    v.clear();
  }
};

/// The tensor that a name in a state dict refers to.
struct Key {
  int layer = -1;    ///< within the pipeline stage or chunk; -1 outside of layers
  std::string name;  ///< "attention/qkv/weight" of a layer, else the logical name
};

/// The key of `name`, such as "language_model.encoder.layers.3.mlp.dense_h_to_4h.weight"; empty for
/// unknown names.
std::optional<Key> parse_key(std::string_view name);

/// Whether the tensor `name` needs no counterpart: causal masks, FP8 scales.
bool is_redundant(std::string_view name);

/// The logical name of `key` with the number of its layer in the whole model.
std::string logical_name(const Key& key, int first_layer);

/// All tensors of the nested dicts below `value`, in order, with their paths joined by dots.
std::vector<std::pair<std::string, torch::Tensor>> flatten(const torch::Value& value);

/// Opens a checkpoint: the folder of an iteration, or one with latest_checkpointed_iteration.txt
/// (Megatron-LM), latest or latest_universal (DeepSpeed). Throws IoError; DataError for damaged and
/// unknown ones.
Foreign read_foreign(const std::filesystem::path& path);

/// The readers of read_foreign(), for the folder of one iteration.
Foreign read_megatron(const std::filesystem::path& folder);
Foreign read_deepspeed(const std::filesystem::path& folder);
Foreign read_universal(const std::filesystem::path& folder);
Foreign read_distributed(const std::filesystem::path& folder);

/// Reads arguments, iteration, samples, the order of q, k and v, the schedule and the loss scale of
/// a file that has them: that of any rank, or common.pt.
void read_common(const torch::Archive& archive, Foreign& foreign);

/// The deck of the run that wrote `foreign`, from its arguments, by the rules of `trireme-convert
/// flags`; appends notes. Throws DataError if there are no arguments, DeckError for arguments that
/// Trireme does not support.
std::string deck_text(const Foreign& foreign, std::vector<std::string>& notes);

/// Joins the shards of `parameter` along the axis that its sharding names, with q, k and v in
/// Trireme's order; rows after the logical ones, the padding of a vocabulary, are dropped.
/// `head_dim` is the number of rows of a head. Throws DataError that names the tensor and shapes.
std::vector<float> assemble(const std::vector<Shard>& shards, const model::Parameter& parameter,
                            QkvOrder order, std::int64_t head_dim);

// What DeepSpeed's checkpoints have in common: the names of a pipeline's parameters and the file of
// a model rank's state.

/// The logical names of the tensors of a pipeline, whose modules are numbered: the first has the
/// embedding, those with an attention are layers, a norm alone is the final one.
class PipelineNames {
 public:
  /// `layers` are the numbers of the modules that are layers; empty without a pipeline.
  explicit PipelineNames(std::set<int> layers) : layers_(std::move(layers)) {}

  /// The name of `tensor` of the module `module`; empty for unknown ones.
  std::optional<std::string> of_module(int module, std::string_view tensor) const;

  /// The name of a parameter of the model, "5.mlp.dense_h_to_4h.weight" or
  /// "tied_modules.embed.word_embeddings.weight"; empty for unknown ones.
  std::optional<std::string> of(std::string_view parameter) const;

 private:
  std::set<int> layers_;
};

/// Reads arguments, iteration, samples and the order of q, k and v of mp_rank_*_model_states.pt.
void read_states(const torch::Value& root, Foreign& foreign);

}  // namespace trireme::convert::megatron
