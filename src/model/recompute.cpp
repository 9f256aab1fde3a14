#include "model/recompute.hpp"

#include <algorithm>

#include "core/error.hpp"

namespace trireme::model {

std::vector<Segment> cut_into_segments(int layers, const Recompute& recompute) {
  using What = Recompute::What;
  TRIREME_CHECK(recompute.layers >= 1, "groups of {} layers", recompute.layers);
  const int group = recompute.what == What::uniform ? recompute.layers : 1;
  const int again = recompute.what == What::uniform ? layers
                    : recompute.what == What::block ? std::min(layers, recompute.layers)
                                                    : 0;
  std::vector<Segment> segments;
  for (int first = 0; first < again; first += group)
    segments.push_back({first, std::min(group, again - first), /*again=*/true});
  if (again < layers) segments.push_back({again, layers - again, /*again=*/false});
  return segments;
}

}  // namespace trireme::model
