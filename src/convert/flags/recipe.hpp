// From the flags and commands of a script to a deck. The table of flags: the flags of
// Megatron-LM (first release to Megatron-Core), of its DeepSpeed and BigScience forks, and the
// keys of a ds_config.json; the parser that finds them in a command line or a JSON file; and the
// rules that make a deck of them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "convert/shell/script.hpp"
#include "deck/deck.hpp"

namespace trireme::convert::flags {

/// The number of values of a flag.
enum class Takes { nothing, one, several, any };
inline constexpr auto kNone = Takes::nothing;
inline constexpr auto kOne = Takes::one;
inline constexpr auto kSeveral = Takes::several;
inline constexpr auto kAny = Takes::any;

/// How a flag is converted.
enum class Fate {
  key,      ///< its value becomes the value of `key`
  rule,     ///< it decides keys together with other flags
  dropped,  ///< Trireme does not need it; `note` says why
  refused,  ///< Trireme cannot do it; `note` says what to do
};

/// One row of the table.
struct Flag {
  std::string_view name;  ///< without dashes, words joined by `-`; the path of a JSON key; "moe-*"
                          ///< for all flags that begin with "moe-" and have no row
  Takes takes = Takes::one;
  Fate fate = Fate::dropped;
  std::string_view key;   ///< deck key; for Fate::rule the main one, as documentation
  std::string_view word;  ///< the value that a switch sets, or the unit of a number
  std::string_view note;
};

/// All flags of the command line.
const std::vector<Flag>& command_flags();

/// All keys of a ds_config.json. A row for "optimizer" covers the keys below it.
const std::vector<Flag>& json_keys();

/// The row called `name`, written with `-` or `_`; null if there is none.
const Flag* find_flag(const std::vector<Flag>& table, std::string_view name);

/// "; did you mean '--num-layers'?" with the known name nearest to `name`, or "".
std::string suggestion(const std::vector<Flag>& table, std::string_view name,
                       std::string_view dashes);

// ---------------------------------------------------------------------------- rows

/// A flag with one value, which becomes that of `key`; `unit` is appended if given.
constexpr Flag to_key(std::string_view name, std::string_view key, std::string_view unit = "") {
  return {name, Takes::one, Fate::key, key, unit, ""};
}
/// A switch that sets `key` to `value`.
constexpr Flag turns(std::string_view name, std::string_view key, std::string_view value,
                     std::string_view note = "") {
  return {name, Takes::nothing, Fate::key, key, value, note};
}
/// A flag read by rules; `key` is the main key that they set.
constexpr Flag to_rule(std::string_view name, std::string_view key, Takes takes = Takes::one) {
  return {name, takes, Fate::rule, key, "", ""};
}
/// A flag that sets no key, with the `reason` shown to the user.
constexpr Flag drop(std::string_view name, Takes takes, std::string_view reason) {
  return {name, takes, Fate::dropped, "", "", reason};
}
/// A flag that stops the conversion, with the `way_out` shown to the user.
constexpr Flag refuse(std::string_view name, Takes takes, std::string_view way_out) {
  return {name, takes, Fate::refused, "", "", way_out};
}

/// The parts of the table, in the order of Megatron's own groups.
std::vector<Flag> model_flags();
std::vector<Flag> core_flags();
std::vector<Flag> training_flags();
std::vector<Flag> data_flags();
std::vector<Flag> system_flags();

/// A flag of the command line, or a key of ds_config.json, with its values.
struct Given {
  const Flag* flag = nullptr;
  std::string name;                 ///< as it is written: "--num-layers"
  std::vector<std::string> values;  ///< empty for a switch
  std::string place;                ///< "train.sh:12"

  /// "--num-layers 24".
  std::string text() const;
};

/// A message and its place in the input.
struct Remark {
  std::string place;
  std::string message;
};

/// The flags of a command line or the keys of a JSON file. The last of a repeated flag counts.
class Arguments {
 public:
  void add(Given given);
  /// The flag called `name`; null if it is not given.
  const Given* find(std::string_view name) const;
  bool has(std::string_view name) const { return find(name) != nullptr; }
  /// Records that the flag `name` is present with an invalid value.
  void add_unreadable(std::string_view name) { unreadable_.insert(name); }
  /// Whether the flag is present, with a valid or an invalid value.
  bool mentions(std::string_view name) const { return has(name) || unreadable_.contains(name); }
  /// Every flag once.
  const std::vector<Given>& all() const { return given_; }

 private:
  std::vector<Given> given_;
  std::set<std::string_view> unreadable_;
};

/// The result of parsing.
struct Parsed {
  Arguments arguments;
  std::vector<Remark> errors;     ///< unknown flags, missing and surplus values, unknown variables
  std::vector<Remark> notes;      ///< repeated flags, unknown words
  std::set<std::string> ignored;  ///< names of --ignore that occur
};

/// The flags among `words`, found at `place`. Flags named in `ignored` (without dashes) are skipped
/// with their values.
Parsed parse_flags(const std::vector<std::string>& words, const std::string& place,
                   const std::set<std::string>& ignored);

/// The keys of the DeepSpeed configuration `text` of the file `name`. Throws DataError if it is no
/// JSON object.
Parsed parse_json(const std::string& text, const std::string& name,
                  const std::set<std::string>& ignored);

/// "the script does not say what $NNODES is (give --define NNODES=...)", for a text with marks.
std::string unknown_values(std::string_view text);

// The commands of a script: the one that trains, the number of ranks that its launcher starts, and
// the Trireme commands that replace preprocessing, evaluation and generation.

/// A command line, split at its program.
struct TrainingCommand {
  std::vector<std::string> launcher;  ///< the words before the program
  std::string program;                ///< "pretrain_gpt.py"; "" if only flags are given
  std::vector<std::string> flags;     ///< the words after it
  std::string place;                  ///< "train.sh:12"
};

/// The training command of `run`: a Python program with --num-layers. `line` chooses one of several
/// different ones. Throws DataError that lists the commands.
TrainingCommand find_training_command(const shell::Run& run, const std::string& file,
                                      std::optional<int> line);

/// The commands of a script that are flags alone although it runs a program: a line continuation is
/// missing before them.
std::vector<shell::RunCommand> stray_flags(const shell::Run& run);

/// The commands of `run` that start a Python program other than training, in order; empty if any
/// command trains.
std::vector<TrainingCommand> commands_without_training(const shell::Run& run);

/// Replaces `--hostfile FILE` (or `-H FILE`) of DeepSpeed's launcher by the `--include` that means
/// the same, host:0,1,2,3@host2:..., after --num_nodes, --num_gpus, --include and --exclude. FILE,
/// lines of "host slots=N", is read from `folder` if its path is relative; without it the launcher
/// stays as it is. Throws DataError for a malformed file.
void expand_hostfile(std::vector<std::string>& launcher, const std::filesystem::path& folder);

/// The hosts and GPUs of DeepSpeed's `-i host:4,5@host2:4,5`, one a line as "host slots=2
/// gpus=4,5", the format of jobs/ssh/train.sh; "" without it.
std::string hosts_of(const std::vector<std::string>& launcher);

/// The number of ranks and its source.
struct Ranks {
  std::int64_t count = 0;
  std::string source;  ///< "torchrun --nproc_per_node 8 --nnodes 2"
};

/// The option of the `launcher` that gives a number of ranks or nodes which the script does not
/// know, with its value, as in "--nnodes ${NNODES}"; "" if there is none, or Slurm knows it.
std::string unknown_ranks(const std::vector<std::string>& launcher);

/// The number of ranks that the `launcher` starts; empty if unknown. `sbatch` are the words of the
/// script's #SBATCH lines, which apply to srun.
std::optional<Ranks> count_ranks(const std::vector<std::string>& launcher,
                                 const std::vector<std::string>& sbatch);

/// The commands of Trireme that replace one of Megatron-LM.
struct Equivalent {
  std::string commands;              ///< shell commands, one a line
  std::vector<std::string> notes;    ///< one a line, with the place
  std::vector<std::string> unbuilt;  ///< options among them that are not implemented yet
};

/// The Trireme commands that replace `command`; empty for unknown programs and missing flags.
/// Throws DeckError with a line for each flag that has no counterpart.
std::optional<Equivalent> equivalent_of(const TrainingCommand& command);

// A recipe on its way to a deck: Recipe holds the flags that were read, Draft the deck keys that
// are set, each with its origin; the rules map groups of flags to keys.

/// Collects deck settings, ignored flags, errors and notes.
class Draft {
 public:
  /// Sets `key` to `yaml` because of `given`. A value that the key does not allow is an error.
  void set(std::string_view key, const std::string& yaml, const Given& given);
  /// Sets `key` for another reason, shown as `why`.
  void set(std::string_view key, const std::string& yaml, const std::string& why);
  bool has(std::string_view key) const { return settings_.contains(key); }
  /// What `key` is set to; "" if it is not set.
  std::string value(std::string_view key) const {
    const auto found = settings_.find(key);
    return found == settings_.end() ? "" : found->second.yaml;
  }

  /// Records a flag that sets no key.
  void leave_out(const Given& given, std::string_view reason);

  /// Records an error, which stops the conversion. Duplicates count once.
  void error(const std::string& place, std::string message);
  void error(const Given& given, std::string_view message);
  /// Records a note for the user.
  void note(const std::string& place, std::string message);

  /// Checks the deck as a whole, as far as its features are implemented, on `ranks` ranks unless
  /// that is 0. Problems become errors at `place`.
  void check_deck(const std::string& place, std::int64_t ranks);

  const std::vector<Remark>& errors() const { return errors_; }
  const std::vector<Remark>& notes() const { return notes_; }
  /// "recompute.granularity: full (--checkpoint-activations)" for each key that is not implemented
  /// yet.
  std::vector<std::string> unbuilt() const;

  /// The deck with the lines of `title` as comments, and the origin of every key in a comment.
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
  std::vector<Remark> left_out_;  ///< flag and reason
  std::vector<Remark> errors_;
  std::vector<Remark> notes_;
};

/// One training command and the deck that the rules derive from it.
struct Recipe {
  std::string place;       ///< of the command, "train.sh:12"
  std::string program;     ///< "pretrain_gpt.py"
  Arguments flags;         ///< of the command line
  Arguments json;          ///< of ds_config.json, which overrides flags if `deepspeed`
  bool deepspeed = false;  ///< --deepspeed is given
  std::optional<Ranks> ranks;
  Draft draft;

  /// Whether the flags are of Megatron-LM before 2.0, such as --batch-size.
  bool before_version_2() const {
    return flags.has("batch-size") || flags.has("warmup") || flags.has("model-parallel-size") ||
           flags.has("pipe-parallel-size");
  }

  /// Whether the flags are of the first Megatron-LM (2019), which names corpora of text.
  bool is_first_release() const { return flags.has("train-data"); }

  /// The whole number of the flag `name`; empty if it is not given or, which is recorded as an
  /// error, is no whole number.
  std::optional<std::int64_t> whole(std::string_view name) { return whole(flags.find(name)); }
  /// The same for a flag that was looked up; null if it is not given.
  std::optional<std::int64_t> whole(const Given* given);

  /// The one given of two synonymous flags; an error if both are.
  const Given* one_of(std::string_view first, std::string_view second);

  /// Sets `key` to the value of `given`, followed by `unit` if any.
  void copy(const Given& given, std::string_view key, std::string_view unit = "");
  /// copy() of the flag `name` if it is given, else of the `fallback` of the recipe's program; ""
  /// if the deck's default is the same.
  void copy_or(std::string_view name, std::string_view key, std::string_view fallback,
               std::string_view unit = "");

  /// The sizes of tensor and pipeline parallelism; 1 by default.
  std::int64_t tensor();
  std::int64_t pipeline();
  /// Data-parallel size: ranks / (tensor * pipeline), if the ranks are known and divide.
  std::optional<std::int64_t> data();
};

/// A number as the deck writes it: ".01" as "0.01".
std::string as_number(const std::string& text);

/// The program's own default, as the origin of a setting: "the default of Megatron-LM".
inline constexpr const char* kMegatronDefault = "the default of Megatron-LM";

/// The error for a mixture of experts.
inline constexpr std::string_view kNoExperts =
    "Trireme has no mixture of experts; train the dense model instead";

// The rules: one function for each part of the deck. Each reads the flags with Fate::rule, sets
// keys, and reports contradictions.

/// Ignores the flag `name` if its value is one of `harmless`; otherwise an error with `message`.
void allow_only(Recipe& recipe, std::string_view name,
                std::initializer_list<std::string_view> harmless, std::string_view message);

/// Network, layout, ZeRO, recomputation.
void apply_model_rules(Recipe& recipe);
/// The network of Llama's kind, if the flags describe one; whether they do.
bool apply_llama_rules(Recipe& recipe);
void apply_layout_rules(Recipe& recipe);
void apply_recompute_rules(Recipe& recipe);

/// Lengths in tokens (Megatron-DeepSpeed): converts them to samples, before the rules below.
void apply_token_rules(Recipe& recipe);

/// Batches, ramp-up and the length of the run. Checks DeepSpeed's train_batch_size = micro * steps
/// * data ranks.
void apply_batch_rules(Recipe& recipe);

/// Precision and loss scaling.
void apply_precision_rules(Recipe& recipe);

/// Learning rate and optimizer.
void apply_schedule_rules(Recipe& recipe);

/// Datasets and tokenizer; checkpoints, evaluation and logs.
void apply_data_rules(Recipe& recipe);
void apply_output_rules(Recipe& recipe);

}  // namespace trireme::convert::flags
