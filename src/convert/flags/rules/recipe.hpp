// A recipe on its way into a deck: what the rules read and what they write.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "convert/flags/arguments.hpp"
#include "convert/flags/command.hpp"
#include "convert/flags/draft.hpp"

namespace trireme::convert::flags {

/// One command that trains, with all that the rules know of it.
struct Recipe {
  std::string place;       ///< of the command, "train.sh:12"
  std::string program;     ///< "pretrain_gpt.py"
  Arguments flags;         ///< of the command line
  Arguments json;          ///< of ds_config.json, which rules over flags where `deepspeed`
  bool deepspeed = false;  ///< the command says --deepspeed
  std::optional<Ranks> ranks;
  Draft draft;

  /// Whether the flags are those of Megatron-LM before 2.0, of which --batch-size is one.
  bool before_version_2() const {
    return flags.has("batch-size") || flags.has("warmup") || flags.has("model-parallel-size") ||
           flags.has("pipe-parallel-size");
  }

  /// Whether they are those of the first Megatron-LM, of 2019, which read text by a corpus's name.
  bool is_first_release() const { return flags.has("train-data"); }

  /// The whole number of the flag `name`; empty when it is not given or, which becomes an error, is
  /// no whole number.
  std::optional<std::int64_t> whole(std::string_view name) { return whole(flags.find(name)); }
  /// The same of a flag that was looked up, null where it is not given.
  std::optional<std::int64_t> whole(const Given* given);

  /// The only one given of two flags that say the same thing; an error where both are.
  const Given* one_of(std::string_view first, std::string_view second);

  /// Sets `key` to the value of `given` as it stands there, with `unit` behind it, if any.
  void copy(const Given& given, std::string_view key, std::string_view unit = "");
  /// copy() of the flag `name` where it is given; else its `fallback` in the recipe's program, ""
  /// where the deck's default is the same.
  void copy_or(std::string_view name, std::string_view key, std::string_view fallback,
               std::string_view unit = "");

  /// The degree of tensor and of pipeline parallelism: 1 where nothing is said.
  std::int64_t tensor();
  std::int64_t pipeline();
  /// Copies of the model: ranks / (tensor * pipeline), where the ranks are known and divide.
  std::optional<std::int64_t> data();
};

/// A number as the deck writes it: ".01" as "0.01".
std::string as_number(const std::string& text);

/// The program's own default, as the origin of a setting: "the default of Megatron-LM".
inline constexpr const char* kMegatronDefault = "the default of Megatron-LM";

}  // namespace trireme::convert::flags
