// What one iteration did.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>

namespace trireme::train {

/// What an iteration did; the same on every rank.
struct StepResult {
  double loss = 0.0;           ///< mean over the batch's tokens
  double gradient_norm = 0.0;  ///< before clipping
  double learning_rate = 0.0;  ///< the next iteration's, as Megatron-LM prints it
  std::int64_t samples = 0;    ///< the global batch
  bool applied = false;        ///< false when the gradient was not finite: no update
  double loss_scale = 1.0;     ///< the next iteration's
  /// The update was skipped while the dynamic loss scale was above its minimum.
  bool searches_scale = false;
  std::optional<std::int64_t> gradient_zeros = {};  ///< with log.norms, where a report is due

  /// Whether it counts towards train.diverged_after: the loss is not finite, or the gradient is not
  /// and no lower loss scale can help.
  bool is_bad() const { return !std::isfinite(loss) || (!applied && !searches_scale); }
};

}  // namespace trireme::train
