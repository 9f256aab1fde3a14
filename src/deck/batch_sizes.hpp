// How many samples each iteration of a run takes: a constant, or a growing number in a ramp-up.
#pragma once

#include <cstdint>

#include "deck/deck.hpp"

namespace trireme::deck {

/// How far a run has come.
struct Progress {
  std::int64_t iteration = 0;
  std::int64_t samples = 0;  ///< that these iterations have taken

  bool operator==(const Progress&) const = default;
};

/// The size of the global batch as a function of the samples that a run has taken. With
/// batch.rampup it is start + k * step after k of the (global - start) / step equal parts of the
/// ramp's samples, and batch.global as soon as more than those are taken. Source: Megatron-LM's
/// --rampup-batch-size, whose floating-point arithmetic decides at the borders of the parts.
class BatchSizes {
 public:
  /// A ramp-up that the deck's checks refuse counts as none, as does a size below 1 as 1.
  explicit BatchSizes(const Batch& batch);

  /// Samples of the iteration that follows on `samples`.
  std::int64_t at(std::int64_t samples) const;

  /// `iterations` further than `from`.
  Progress advance(const Progress& from, std::int64_t iterations) const;

  /// As few iterations further than `from` as take the run to `samples` or more.
  Progress reach(const Progress& from, std::int64_t samples) const;

  /// As many iterations further than `from` as fit into `samples`: what does not fill a batch is
  /// left over.
  Progress fill(const Progress& from, std::int64_t samples) const;

  /// How often a fresh run `reaches` a multiple of `every` up to `now`.
  std::int64_t times_reached(const Length& every, const Progress& now) const;

 private:
  /// Iterations of one size in a row.
  struct SizeRange {
    std::int64_t batch;
    std::int64_t iterations;
  };
  SizeRange size_range(std::int64_t samples) const;
  std::int64_t step_at(std::int64_t samples) const;
  /// Advances by `limit(now, batch)` iterations, computed anew wherever the size changes.
  template <typename Limit>
  Progress walk(Progress now, Limit limit) const;

  std::int64_t largest_;
  std::int64_t start_;           ///< the first size; largest_ where there is no ramp-up
  std::int64_t step_ = 0;        ///< growth
  std::int64_t steps_ = 0;       ///< how often it grows
  std::int64_t ramp_ = -1;       ///< samples of the ramp-up
  double samples_per_step_ = 1;  ///< need not be whole
};

/// Whether a run that advances from `before` to `now` reaches a multiple of `every`, which is a
/// number of iterations or of samples.
bool reaches(const Length& every, const Progress& before, const Progress& now);

/// Where a run of `deck` ends that resumes at `from`: after train.iterations, or where no whole
/// batch is left of train.samples.
Progress end_of_run(const Deck& deck, const Progress& from = {});

}  // namespace trireme::deck
