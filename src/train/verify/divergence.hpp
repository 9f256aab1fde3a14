// Divergence: losses far above the usual, and where a diverged model holds numbers that are not
// finite.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/mpi/mpi_communicator.hpp"
#include "deck/deck.hpp"
#include "device/backend.hpp"
#include "model/parameters/store.hpp"
#include "optim/optimizer.hpp"

namespace trireme::train {

// train.spike: iterations whose loss or gradient norm is far above those before them, whose updates
// are skipped.

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

// Where a diverged model holds numbers that are not finite, or the largest ones.

/// The first parameter of the table that has a weight which is NaN or infinite on any rank; where
/// there is none, the first with such a gradient. In words: "the weight layers/0/mlp/up/weight[3,
/// 17] on rank 1 (node0) is nan; 1 of 26 parameters has such weights". "" where all numbers are
/// finite. Weights are looked at in both precisions; gradients are those that reduce_gradients()
/// left, of which this rank owns a shard. Copies both to the host in pieces. Collective over
/// `world`; the same text on every rank.
std::string find_non_finite(comm::MpiCommunicator& world, device::Backend& backend,
                            const model::ParameterStore& parameters,
                            const optim::Optimizer& optimizer);

/// As find_non_finite(), of the weights alone that passes read, which must be whole.
std::string find_non_finite(comm::MpiCommunicator& world, device::Backend& backend,
                            const model::ParameterStore& parameters);

/// The parameter with the largest magnitude of a weight: "-3e+18 in layers/0/mlp/up/weight on rank
/// 0 (host)". Collective over `world`; the same text on every rank.
std::string find_largest_weight(comm::MpiCommunicator& world, device::Backend& backend,
                                const model::ParameterStore& parameters,
                                const optim::Optimizer& optimizer);

}  // namespace trireme::train
