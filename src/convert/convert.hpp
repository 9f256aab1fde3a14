// What trireme-convert does: the recipes of Megatron-LM and DeepSpeed become decks, checkpoints
// come from and go to Hugging Face's transformers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "convert/shell/script.hpp"

namespace trireme::convert {

namespace flags {

/// What to convert, and what to know beside it.
struct Request {
  std::filesystem::path file;          ///< a script; empty where `words` are the command line
  std::vector<std::string> words;      ///< a command line, split by a shell
  std::filesystem::path ds_config;     ///< wins over --deepspeed_config; empty: that one
  shell::Definitions definitions;      ///< variables of the script
  std::vector<std::string> arguments;  ///< of the script, `$1` and on
  std::set<std::string> ignored;       ///< flags, without dashes, and JSON keys to leave out
  std::optional<std::int64_t> ranks;   ///< what the launcher started, where it does not say
  std::optional<int> line;             ///< of the training command, where there are several
};

/// A deck and what to tell about it.
struct Result {
  std::string deck;                  ///< commented; "" where the recipe does not train
  std::string commands;              ///< of Trireme's programs, for a recipe that does not train
  std::string hosts;                 ///< the hosts of its launcher, as jobs/ssh/train.sh reads them
  std::vector<std::string> notes;    ///< a line each
  std::vector<std::string> unbuilt;  ///< keys in it whose feature is not built, with their origin
};

/// Converts. Throws one DeckError that names everything that has no counterpart or contradicts, a
/// line each with its place, DataError where there is no training command, and IoError.
Result convert(const Request& request);

/// The table of flags, a line each: flag, key or what becomes of it.
std::string describe_flags();

}  // namespace flags

namespace huggingface {

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

}  // namespace huggingface

}  // namespace trireme::convert
