// A deck whose run folder a test chooses.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "deck/load.hpp"

namespace trireme::train {

inline const std::string kTinyDeck =
    "model: {layers: 2, hidden: 8, heads: 2, sequence: 16, vocab: 64}\n"
    "batch: {micro: 1, global: 4}\n"
    "schedule: {peak: 1e-3}\n"
    "data: {train: corpus, split: 1}\n"
    "train: {iterations: 100}\n";

/// The tiny deck with its run in `folder`, changed by `overrides`.
inline deck::Deck tiny_deck(const std::filesystem::path& folder,
                            std::vector<std::string> overrides = {}) {
  overrides.push_back("run.output=" + folder.string());
  overrides.push_back("parallel.data=1");
  return deck::parse(kTinyDeck, "tiny.yaml", overrides);
}

}  // namespace trireme::train
