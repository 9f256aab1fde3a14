// The ways that messages take between the ranks of a group.
#pragma once

#include <vector>

namespace trireme::comm {

/// Tags of what the stages of a pipeline send each other.
inline constexpr int kActivationTag = 0;
inline constexpr int kGradientTag = 1;

/// Messages of one tag from one rank of a group to another. They arrive in the order in which they
/// were sent; messages on different routes never wait for each other.
struct Route {
  int source = 0;
  int destination = 0;
  int tag = 0;

  bool operator==(const Route&) const = default;
};

/// The routes of a pipeline of `stages` ranks: activations from each stage to the next, gradients
/// back; with several chunks a stage also from the last stage to the first. Those of even stages
/// come first, so that ranks that open them in this order open many at once.
inline std::vector<Route> pipeline_routes(int stages, int chunks = 1) {
  std::vector<Route> routes;
  for (const int parity : {0, 1}) {
    for (int stage = parity; stage + 1 < stages; stage += 2) {
      routes.push_back({stage, stage + 1, kActivationTag});
      routes.push_back({stage + 1, stage, kGradientTag});
    }
  }
  if (chunks > 1) {
    routes.push_back({stages - 1, 0, kActivationTag});
    routes.push_back({0, stages - 1, kGradientTag});
  }
  return routes;
}

}  // namespace trireme::comm
