// From a deck file and its overrides to a checked Deck.
//
// All errors are found before anything is thrown: one DeckError holds a line for each,
// `file:line:column: message`, in the order of the file, and a last line that counts them. Errors
// of an override stand after them as `--set key=value: message`.
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

}  // namespace trireme::deck
