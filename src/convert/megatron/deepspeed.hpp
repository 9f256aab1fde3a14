// What DeepSpeed's checkpoints have in common: the names of a pipeline's parameters and the file of
// a model rank's state.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "convert/megatron/foreign.hpp"

namespace trireme::convert::megatron {

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
