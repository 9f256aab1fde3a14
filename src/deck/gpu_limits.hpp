// The largest models that the kernels for GPUs take, for checks on machines that have none.
#pragma once

#include <cstdint>

namespace trireme::deck {

/// model.hidden, and model.hidden / model.heads, at most with run.device = cuda.
inline constexpr std::int64_t kMostHiddenOnGpu = 16384;
inline constexpr std::int64_t kMostHeadOnGpu = 256;

}  // namespace trireme::deck
