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
  bool transposed = false;  ///< the counterpart has the transposed shape

  /// Its shape there.
  std::vector<std::int64_t> shape() const;
};

inline constexpr const char* kPrefix = "transformer.";

/// The counterparts of all parameters of `config`, in checkpoint order. Throws DataError for a
/// model that GPT-2 cannot represent, such as one with an embedding layer norm.
std::vector<Counterpart> counterparts(const model::Gpt2Config& config);

/// Whether `name`, without prefix, is the causal mask, which old GPT-2 files contain.
bool is_mask(const std::string& name);

/// The transpose [columns, rows] of `values` [rows, columns].
std::vector<float> transpose(const std::vector<float>& values, std::int64_t rows,
                             std::int64_t columns);

/// config.json of `config`; `eod` is the token that begins and ends documents, where there is one.
std::string write_config(const model::Gpt2Config& config, std::optional<std::int64_t> eod);

/// The model of the config.json at `path`. Throws DataError that names the file and the key for a
/// model that is not GPT-2, or computes differently from Trireme; IoError.
model::Gpt2Config read_config(const std::filesystem::path& path);

}  // namespace trireme::convert::huggingface
