// Counter-based random numbers: the same (key, counter) gives the same numbers on any rank, thread
// or device. Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC
// 2011), Philox4x32-10.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

#ifdef __CUDACC__
#define TRIREME_HOST_DEVICE __host__ __device__
#else
#define TRIREME_HOST_DEVICE
#endif

namespace trireme {

/// Four 32-bit words: a Philox counter or one draw.
struct Philox4 {
  std::uint32_t x, y, z, w;
};

/// One block of four uniform 32-bit words from the counter and the 64-bit key.
TRIREME_HOST_DEVICE inline Philox4 philox(Philox4 counter, std::uint64_t key) {
  std::uint32_t k0 = static_cast<std::uint32_t>(key);
  std::uint32_t k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53u} * counter.x;
    const std::uint64_t b = std::uint64_t{0xCD9E8D57u} * counter.z;
    counter = {static_cast<std::uint32_t>(b >> 32) ^ counter.y ^ k0, static_cast<std::uint32_t>(b),
               static_cast<std::uint32_t>(a >> 32) ^ counter.w ^ k1, static_cast<std::uint32_t>(a)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return counter;
}

/// Where dropout is applied in a transformer; part of the random counter.
enum class DropoutSite : std::uint32_t { embedding = 0, attention = 1, projection = 2, mlp = 3 };

/// Dropout of one site for one sample, keyed by the logical element, never by rank: no layout
/// changes a mask. Element e of the site (position * hidden + feature) is dropped when its 32-bit
/// word is below probability * 2^32; kept elements are scaled by 1 / (1 - probability). Attention,
/// whose e is (head * s + query) * s + key, draws otherwise: kernels/attention_mask.hpp.
struct DropoutStream {
  std::uint64_t seed = 0;
  /// Index of the sample in the run (consumed samples before it), below 2^48.
  std::uint64_t sample = 0;
  std::uint32_t layer = 0;  ///< logical layer; 0 for the embedding
  DropoutSite site = DropoutSite::embedding;

  /// The words of elements 4 * block .. 4 * block + 3; block below 2^48.
  TRIREME_HOST_DEVICE Philox4 words(std::uint64_t block) const {
    return philox(
        {static_cast<std::uint32_t>(block),
         static_cast<std::uint32_t>((block >> 32) & 0xFFFF) |
             static_cast<std::uint32_t>((sample >> 32) & 0xFFFF) << 16,
         static_cast<std::uint32_t>(sample), layer << 2 | static_cast<std::uint32_t>(site)},
        seed);
  }
};

/// The threshold under which a word means "dropped": probability * 2^32, rounded.
TRIREME_HOST_DEVICE inline std::uint32_t dropout_threshold(double probability) {
  const double scaled = probability * 4294967296.0 + 0.5;
  return scaled >= 4294967295.0 ? 4294967295u : static_cast<std::uint32_t>(scaled);
}

/// Element `index` of the standard normal random tensor named by `stream` (a hash of the
/// parameter's logical name). Box-Muller on two 53-bit uniforms, one draw per element, in double.
double philox_normal(std::uint64_t seed, std::uint64_t stream, std::uint64_t index);

/// Uniform in [0, 1) with 53 bits: number `index` of `stream`.
double philox_uniform(std::uint64_t seed, std::uint64_t stream, std::uint64_t index);

/// A stable 64-bit hash of a name (FNV-1a).
std::uint64_t name_hash(const char* name);

}  // namespace trireme
