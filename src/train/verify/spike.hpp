// train.spike: iterations whose loss or gradient norm is far above those before them, whose updates
// are skipped.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "deck/deck.hpp"

namespace trireme::train {

/// The losses and gradient norms of the last iterations that were no spikes; part of a checkpoint,
/// so that a run which resumes decides as one that did not stop.
struct SpikeHistory {
  std::vector<double> losses, norms;  ///< oldest first
  std::int64_t skipped = 0;           ///< updates of the run so far

  /// Takes an iteration in, and forgets those before the last `window`.
  void add(double loss, double norm, std::int64_t window);

  /// All of it in one line, exactly; and back. Throws DataError for another text.
  std::string text() const;
  static SpikeHistory from(const std::string& text);

  bool operator==(const SpikeHistory&) const = default;
};

/// What of an iteration is a spike, in words: more than `rule.above` standard deviations over the
/// mean of `history`. Nothing before that holds `rule.window` iterations, nor after `rule.limit`
/// spikes. Where `rule` is unset nothing is.
std::optional<std::string> find_spike(const deck::Spike& rule, const SpikeHistory& history,
                                      double loss, double norm);

}  // namespace trireme::train
