// A small sweep for tests, in its own folder.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "../scratch_folder.hpp"
#include "core/error.hpp"
#include "core/files.hpp"
#include "sweep/sweep.hpp"

namespace trireme::sweep {

/// A test with an empty folder and the deck `lr.yaml` in it: tensor 1 or 2, two peaks.
class SweepTest : public testing::Test {
 protected:
  SweepTest() { write(deck_path_, kDeck); }

  static void write(const std::filesystem::path& path, const std::string& text) {
    std::filesystem::create_directories(path.parent_path());
    write_file_atomically(path, text);
  }

  /// The deck's sweep, planned without data.
  PlannedSweep plan(const std::vector<std::string>& overrides = {},
                    CheckOptions options = {.to_run = false}) const {
    std::vector<std::string> all{"run.output=" + (scratch_ / "out").string()};
    all.insert(all.end(), overrides.begin(), overrides.end());
    return plan_sweep(deck_path_, all, options);
  }

  /// Every error of the sweep, without the folder's name.
  std::string errors(const std::vector<std::string>& overrides,
                     const CheckOptions& options = {.to_run = false}) const {
    try {
      plan(overrides, options);
      return "";
    } catch (const DeckError& error) {
      std::string text = error.what();
      for (std::size_t at; (at = text.find(scratch_.string() + "/")) != std::string::npos;)
        text.erase(at, scratch_.string().size() + 1);
      return text.substr(0, text.rfind('\n') + 1);
    }
  }

  static constexpr const char* kDeck =
      "model: {layers: 2, hidden: 64, heads: 4, sequence: 32, vocab: 300}\n"
      "batch: {micro: 2, global: 8}\n"
      "run: {device: host}\n"
      "data: {train: none}\n"
      "train: {iterations: 100}\n"
      "sweep:\n"
      "  parallel.tensor: [1, 2]\n"
      "  schedule.peak: [1e-3, 2e-3]\n";

  ScratchFolder folder_;
  std::filesystem::path scratch_ = folder_.path();
  std::filesystem::path deck_path_ = scratch_ / "lr.yaml";
};

}  // namespace trireme::sweep
