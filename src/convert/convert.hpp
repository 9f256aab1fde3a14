// What trireme-convert does: recipes and checkpoints of Megatron-LM and DeepSpeed become decks and
// checkpoints, and checkpoints come from and go to Hugging Face's transformers.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "convert/shell/script.hpp"
#include "core/tensor.hpp"

namespace trireme::convert {

namespace flags {

/// The input of a conversion.
struct Request {
  std::filesystem::path file;             ///< a script; empty if `words` are the command line
  std::vector<std::string> words;         ///< a command line, already split into words
  std::string words_of = "command line";  ///< what messages call it
  std::filesystem::path ds_config;        ///< overrides --deepspeed_config unless empty
  shell::Definitions definitions;         ///< variables of the script
  std::vector<std::string> arguments;     ///< positional arguments of the script
  std::set<std::string> ignored;          ///< flags (without dashes) and JSON keys to skip
  std::optional<std::int64_t> ranks;      ///< the number of ranks if the launcher does not tell
  std::optional<int> line;                ///< of the training command, if there are several
};

/// A deck and messages about it.
struct Result {
  std::string deck;                  ///< commented; "" if the recipe does not train
  std::string commands;              ///< Trireme's commands for a recipe that does not train
  std::string hosts;                 ///< of the launcher, in the format of jobs/ssh/train.sh
  std::vector<std::string> notes;    ///< one a line
  std::vector<std::string> unbuilt;  ///< keys that are not implemented yet, with their origin
};

/// Converts a recipe. Throws one DeckError that lists unsupported and contradictory flags, one a
/// line with its place; DataError if there is no training command; IoError.
Result convert(const Request& request);

/// The table of flags, one a line: the flag and how it is converted.
std::string describe_flags();

}  // namespace flags

namespace huggingface {

/// How an exported model is stored.
struct ExportOptions {
  DType dtype = DType::f32;                    ///< fp32, bf16 or fp16
  std::uint64_t shard_bytes = 5'000'000'000u;  ///< the maximum size of a file
  std::FILE* progress = nullptr;               ///< gets a progress meter; null: nothing
};

/// Writes the weights of the checkpoint at `from` (a file, or a run's folder) into the folder `to`,
/// one tensor in memory at a time, in fp32 bit for bit, with config.json and the files of the run's
/// tokenizer. Returns a message for the user. Throws DataError when the checkpoint is damaged or
/// its model has no counterpart, IoError when `to` has a model already or cannot be written.
std::string export_model(const std::filesystem::path& from, const std::filesystem::path& to,
                         const ExportOptions& options = {});

/// The deck to store in an imported checkpoint, and where to write it.
struct ImportOptions {
  std::filesystem::path deck;          ///< of the run that will start from it; empty: a minimal one
  std::vector<std::string> overrides;  ///< of the deck's keys
  std::filesystem::path write_deck;    ///< the deck is written there unless empty
  std::FILE* progress = nullptr;       ///< gets a progress meter; null: nothing
};

/// Writes the weights at `from`, a folder or its .safetensors file, as the checkpoint `to` of
/// iteration 0, on several threads that have a few MiB of a tensor each, with the moments that the
/// deck's optimizer keeps, all zero. config.json names the family. fp16 and bf16 weights are
/// widened exactly. Returns a message for the user. Throws DataError for a file that is damaged, of
/// a model that Trireme does not have, of another model than the deck's, or has weights that are
/// not finite, IoError when `to` exists or cannot be written, DeckError.
std::string import_model(const std::filesystem::path& from, const std::filesystem::path& to,
                         const ImportOptions& options);

}  // namespace huggingface

namespace megatron {

/// The deck to store in an imported checkpoint, and where to write it.
struct ImportOptions {
  std::filesystem::path deck;  ///< empty: from the arguments in the checkpoint
  std::string deck_text;       ///< of the deck, instead of the file `deck`, unless empty
  std::optional<std::int64_t> vocabulary;  ///< its size, if the deck's tokenizer determines it
  std::vector<std::string> overrides;      ///< of the deck's keys
  std::filesystem::path write_deck;        ///< the deck is written there unless empty
  std::FILE* progress = nullptr;           ///< gets a progress meter; null: nothing
};

/// Writes the checkpoint of Megatron-LM or DeepSpeed at `from`, the folder of one iteration or the
/// one that contains it, as the checkpoint `to`: weights in fp32, exact (the optimizer's fp32
/// copies if they are there), Adam's moments and the state of the run. Without moments the result
/// is of iteration 0. Executes nothing of the files. Returns a message for the user, which names
/// what is not read. Throws DataError for a checkpoint that is damaged, incomplete or of another
/// model than the deck's; IoError if `to` exists or cannot be written; DeckError.
std::string import_checkpoint(const std::filesystem::path& from, const std::filesystem::path& to,
                              const ImportOptions& options);

}  // namespace megatron

}  // namespace trireme::convert
