#include "model/stage/recompute.hpp"

#include <algorithm>

#include "core/error.hpp"

namespace trireme::model {

std::vector<Segment> make_segments(int layers, const Recompute& recompute) {
  using What = Recompute::What;
  TRIREME_CHECK(recompute.layers >= 1, "groups of {} layers", recompute.layers);
  const int group = recompute.what == What::uniform ? recompute.layers : 1;
  const int recomputed = recompute.what == What::uniform ? layers
                         : recompute.what == What::block ? std::min(layers, recompute.layers)
                                                         : 0;
  std::vector<Segment> segments;
  for (int first = 0; first < recomputed; first += group)
    segments.push_back({first, std::min(group, recomputed - first), /*recomputed=*/true});
  if (recomputed < layers)
    segments.push_back({recomputed, layers - recomputed, /*recomputed=*/false});
  return segments;
}

}  // namespace trireme::model
