// From logits to the next token.
#pragma once

#include <cstdint>
#include <span>

namespace trireme::generate {

/// How the next token is drawn. The filters apply in this order: temperature, top-k, top-p.
struct Sampling {
  bool greedy = false;       ///< take the most likely token; the rest is then without effect
  double temperature = 1.0;  ///< logits are divided by it; positive
  std::int64_t top_k = 0;    ///< keep the k most likely tokens; 0 keeps all
  double top_p = 1.0;        ///< keep the fewest most likely tokens whose probabilities exceed this
                             ///< sum, in (0, 1]; 1 keeps all
  std::uint64_t seed = 1234;
};

/// Throws UsageError, naming the command line's option, for a value outside its range.
void check_sampling(const Sampling& sampling);

/// The id drawn from `logits`, one for each id that may be chosen; of equal logits the lower id
/// counts as the more likely one. `uniform` in [0, 1) is the random number to draw with. Throws
/// DataError when a logit is not finite. Source of top-p: Holtzman et al., "The curious case of
/// neural text degeneration" (2020), section 3.1.
std::int32_t choose(std::span<const double> logits, const Sampling& sampling, double uniform);

}  // namespace trireme::generate
