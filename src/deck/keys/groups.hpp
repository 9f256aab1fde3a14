// The groups of rows that make the table of keys, and the bounds that they share. A row that names
// a member is bound to it; a row that names a path only has no feature yet.
#pragma once

#include <vector>

#include "deck/row.hpp"

namespace trireme::deck {

// Bounds that keep every product of the program within 64 bits.
inline constexpr double kMostLayers = 10'000;
inline constexpr double kMostWidth = 1 << 20;
inline constexpr double kMostSequence = 1 << 24;
inline constexpr double kMostVocab = 1 << 30;
inline constexpr double kMostRanks = 1 << 20;
inline constexpr double kMostBatch = 1 << 22;
inline constexpr double kMostSteps = 1e12;
inline constexpr double kMostSeed = 4294967295.0;

/// The units of a length that counts progress.
inline std::vector<Unit> counts() { return {Unit::iterations, Unit::samples}; }

/// The units of a length of time.
inline std::vector<Unit> times() { return {Unit::seconds, Unit::minutes, Unit::hours}; }

// Each appends the rows of its sections.
void run_keys(std::vector<Key>& rows);
void model_keys(std::vector<Key>& rows);
void parallel_keys(std::vector<Key>& rows);
void arithmetic_keys(std::vector<Key>& rows);
void optimizer_keys(std::vector<Key>& rows);
void data_keys(std::vector<Key>& rows);
void train_keys(std::vector<Key>& rows);
void log_keys(std::vector<Key>& rows);
void sweep_keys(std::vector<Key>& rows);

}  // namespace trireme::deck
