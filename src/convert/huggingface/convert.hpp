// Between our checkpoints and the folders of Hugging Face's transformers: model.safetensors and
// config.json of a GPT2LMHeadModel.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace trireme::convert::huggingface {

/// Writes the weights of the checkpoint at `from` (a file, or a run's folder) into the folder `to`,
/// in fp32 bit for bit, with GPT-2's vocabulary files where the run used them. Returns what to tell
/// about it. Throws DataError when the checkpoint is damaged or its model has no counterpart,
/// IoError when `to` has a model already or cannot be written.
std::string export_model(const std::filesystem::path& from, const std::filesystem::path& to);

/// What a checkpoint made of imported weights says beside them.
struct ImportOptions {
  std::filesystem::path deck;          ///< the run that will start from it; empty: a plain one
  std::vector<std::string> overrides;  ///< of the deck's keys
};

/// Writes the weights at `from`, a folder or its .safetensors file, as the checkpoint `to` of
/// iteration 0, with the moments that the deck's optimizer keeps, all zero. fp16 and bf16 weights
/// are widened exactly. Returns what to tell about it. Throws DataError for a file that is damaged,
/// not GPT-2, of another model than the deck's, or has weights that are not finite, IoError when
/// `to` exists or cannot be written, DeckError.
std::string import_model(const std::filesystem::path& from, const std::filesystem::path& to,
                         const ImportOptions& options);

}  // namespace trireme::convert::huggingface
