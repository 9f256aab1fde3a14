// A sum over ranks whose terms lie in the memory of several GPUs, for the kernel that adds them.
#pragma once

namespace trireme {

/// Ranks of a group whose GPUs reach each other's memory, at most.
inline constexpr int kMaxPeers = 8;

/// One term of a sum for each rank of a group, in its memory. A kernel that reads them adds them in
/// this order, in fp32 (fp64 for fp64), and rounds the sum to their type, as the collective would.
struct PeerTerms {
  const void* terms[kMaxPeers] = {};
  int count = 0;  ///< 0: there is nothing to add

  explicit operator bool() const { return count > 0; }
};

}  // namespace trireme
