// From the command line of Megatron-LM or DeepSpeed to a deck.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "convert/shell/script.hpp"

namespace trireme::convert::flags {

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

}  // namespace trireme::convert::flags
