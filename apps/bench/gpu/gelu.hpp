// Products with the GELU beside them: in one kernel against two.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/gpu/meter.hpp"

namespace trireme::bench::gpu {

/// One operation on an MLP's half, y [m, n] of k terms each, with the GELU or its gradient. Each
/// form runs on the kernel that is the fastest for it.
struct WithGelu {
  std::string name;
  std::int64_t m = 0, n = 0, k = 0;
  double separate_ms = 0.0;
  double fused_ms = 0.0;  ///< 0 where cuBLASLt has no such kernel
  bool fused = false;     ///< whether training would run it in one kernel
};

/// The MLP of a GPT of `hidden` features on `tokens` tokens, if the settings want it: the forward
/// pass of its first half, and the gradient that comes back through the second.
std::vector<WithGelu> measure_gelu(Meter& meter, const Settings& settings, const std::string& model,
                                   std::int64_t tokens, std::int64_t hidden);

/// The rows as a table, and as JSON.
void print(const std::vector<WithGelu>& rows);
nlohmann::ordered_json to_json(const std::vector<WithGelu>& rows);

}  // namespace trireme::bench::gpu
