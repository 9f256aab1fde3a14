// From a deck file and its overrides to a checked Deck, and the deck in words: the effective
// deck, help for every key, and what a restart changes, all from the table of keys.
//
// All errors are found before anything is thrown: one DeckError holds a line for each,
// `file:line:column: message`, in the order of the file, and a last line that counts them.
// Errors of an override stand after them as `--set key=value: message`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "deck/deck.hpp"

namespace trireme::deck {

/// What the program that loads a deck needs from it.
struct LoadOptions {
  bool need_data = true;            ///< data.train must be given
  Device automatic = Device::host;  ///< what `run.device: auto` stands for on this machine
};

/// The text of the deck in the file `path`. Throws IoError when it cannot be read, DeckError when
/// it is too large for a deck: a data file named by mistake is not read whole.
std::string read_deck(const std::filesystem::path& path);

/// Reads, checks and completes the deck in the file `path`. Each override is `key=value`, with the
/// value in YAML; `key=` takes the key back to its default, and of several for one key the last
/// holds. Throws IoError when the file cannot be read, DeckError for all that is wrong in it.
Deck load(const std::filesystem::path& path, const std::vector<std::string>& overrides = {},
          const LoadOptions& options = {});

/// As load(), from text. `filename` is what errors name, and its stem the default of run.name.
Deck parse(std::string_view text, const std::string& filename,
           const std::vector<std::string>& overrides = {}, const LoadOptions& options = {});

/// Fits the layout to `ranks` processes: sets parallel.data where it is `auto`, and throws
/// DeckError unless tensor * pipeline * data = ranks and batch.global is a multiple of micro *
/// data.
void resolve_world_size(Deck& deck, std::int64_t ranks);

/// model.hidden, and model.hidden / model.heads, at most with run.device = cuda.
inline constexpr std::int64_t kMaxHiddenOnGpu = 16384;
inline constexpr std::int64_t kMaxHeadOnGpu = 256;

// ---- the deck in words

/// The effective deck as YAML, which parse() reads back to an equal Deck. Values that leaving the
/// key out would give end in `# default`; optional keys that are not set appear as comments. The
/// text depends on the values alone, so printing what was parsed back gives the same text.
std::string print_deck(const Deck& deck);

/// The value of `key` in `deck`: of a text the text itself, else as YAML; "" where it is not set.
/// Throws UsageError, with a suggestion, when there is no such key.
std::string print_value(const Deck& deck, std::string_view key);

/// Help on `topic`: "deck" (one line for each key), "deck.section" or "deck.section.key" (type,
/// default, range, allowed values, what a restart may do); any other word finds a key by another
/// program's name for it, or all keys that mention it. Throws UsageError, with a suggestion, when
/// nothing is found. Lines have at most 100 columns.
std::string help(std::string_view topic);

/// One key that differs; values as the deck writes them, "not set" where there is none.
struct Change {
  std::string key;
  std::string before;
  std::string after;
  RestartRule rule{};
  std::string reason;  ///< why it is immutable here, and what to do; "": as the key is
};

/// The keys whose effective values differ, in the order of the table. Those that share data.train
/// out (data.split, data.valid, data.test) are immutable where they change its training part, else
/// warned of.
std::vector<Change> compare_for_restart(const Deck& checkpoint, const Deck& run);

/// One line for people: "schedule.peak: 0.0003 in the checkpoint, 0.0001 now".
std::string describe(const Change& change);

/// Throws DeckError that names the key and both values of each change of an immutable key, if any.
void refuse_immutable_changes(const std::vector<Change>& changes);

}  // namespace trireme::deck
