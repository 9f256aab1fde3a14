// GPT-2 as Hugging Face's transformers keeps it: names and shapes of tensors, and config.json.
//
// Its Conv1D weights are [in, out], ours [out, in]; all else is the same: pre-norm blocks, GELU in
// the tanh form ("gelu_new"), q, k and v in one projection with heads in order.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "model/families/gpt2.hpp"

namespace trireme::convert::huggingface {

/// One of our parameters and its counterpart.
struct Counterpart {
  model::Parameter parameter;
  std::string name;         ///< without the prefix "transformer."
  bool transposed = false;  ///< the counterpart's axes are ours the other way round

  /// Its shape there.
  std::vector<std::int64_t> shape() const;
};

inline constexpr const char* kPrefix = "transformer.";

/// The counterparts of all parameters of `config`, in checkpoint order. Throws DataError for a
/// model that GPT-2 has no counterpart of: one with a layer norm on its embedding.
std::vector<Counterpart> counterparts(const model::Gpt2Config& config);

/// Whether `name`, without prefix, is a tensor that GPT-2's old files have beside the weights: the
/// causal mask.
bool is_mask(const std::string& name);

/// Turns a matrix [rows, columns] of `values` round.
std::vector<float> transpose(const std::vector<float>& values, std::int64_t rows,
                             std::int64_t columns);

/// config.json of `config`; `eod` is the token that begins and ends documents, where there is one.
std::string write_config(const model::Gpt2Config& config, std::optional<std::int64_t> eod);

/// The model of the config.json at `path`. Throws DataError that names the file and the key for a
/// model that is not GPT-2, or computes otherwise than Trireme does; IoError.
model::Gpt2Config read_config(const std::filesystem::path& path);

}  // namespace trireme::convert::huggingface
