// A recipe on its way to a deck: Recipe holds the flags that were read, Draft the deck keys that
// are set, each with its origin; the rules map groups of flags to keys.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "convert/flags/arguments.hpp"
#include "convert/flags/command.hpp"
#include "deck/deck.hpp"

namespace trireme::convert::flags {

/// Collects settings, and what could not become one.
class Draft {
 public:
  /// Sets `key` to `yaml`, as `given` says. A value that the key cannot have is an error there.
  void set(std::string_view key, const std::string& yaml, const Given& given);
  /// Sets `key` for another reason, told in `why`.
  void set(std::string_view key, const std::string& yaml, const std::string& why);
  bool has(std::string_view key) const { return settings_.contains(key); }

  /// Says that a flag becomes no key.
  void leave_out(const Given& given, std::string_view reason);

  /// What stops the conversion. The same said twice counts once.
  void error(const std::string& place, std::string message);
  void error(const Given& given, std::string_view message);
  /// What the user should know, but need not change.
  void note(const std::string& place, std::string message);

  /// Checks the deck as a whole, as far as its features are built, on `ranks` ranks when that is
  /// not 0: what is wrong becomes an error at `place`.
  void check_deck(const std::string& place, std::int64_t ranks);

  const std::vector<Remark>& errors() const { return errors_; }
  const std::vector<Remark>& notes() const { return notes_; }
  /// "recompute.granularity: full (--checkpoint-activations)", for each key that no program reads
  /// yet.
  std::vector<std::string> unbuilt() const;

  /// The deck, every key with its origin in a comment, under the lines of `title` as comments.
  std::string render(const std::vector<std::string>& title) const;

 private:
  struct Setting {
    std::string yaml;
    std::string origin;
    bool built = true;
  };

  void put(std::string_view key, const std::string& yaml, const std::string& origin,
           const std::string& place);
  std::string body(bool with_unbuilt) const;

  std::map<std::string, Setting, std::less<>> settings_;
  std::vector<Remark> left_out_;  ///< a flag, and the reason
  std::vector<Remark> errors_;
  std::vector<Remark> notes_;
};

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

/// What is said of a network with several experts.
inline constexpr std::string_view kNoExperts =
    "Trireme has no mixture of experts; train the dense model";

/// Network, layout, ZeRO, recomputation.
void apply_model_rules(Recipe& recipe);
void apply_layout_rules(Recipe& recipe);
void apply_recompute_rules(Recipe& recipe);

/// Lengths in tokens, as Megatron-DeepSpeed has them: makes them samples, before the rules below.
void apply_token_rules(Recipe& recipe);

/// Batches and ramp-up, the run's length. DeepSpeed's train_batch_size = micro * steps * data ranks
/// is checked here.
void apply_batch_rules(Recipe& recipe);

/// Types of numbers and loss scaling.
void apply_precision_rules(Recipe& recipe);

/// Learning rate and optimizer.
void apply_schedule_rules(Recipe& recipe);

/// Datasets and tokenizer; checkpoints, evaluation and logs.
void apply_data_rules(Recipe& recipe);
void apply_output_rules(Recipe& recipe);

}  // namespace trireme::convert::flags
