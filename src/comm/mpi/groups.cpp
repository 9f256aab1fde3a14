#include "comm/mpi/groups.hpp"

#include <utility>

#include "core/error.hpp"

namespace trireme::comm {

Groups make_groups(std::unique_ptr<MpiCommunicator> world, const grid::Layout& layout) {
  TRIREME_CHECK(world->size() == layout.ranks(), "{} ranks for a layout of {}", world->size(),
                layout.ranks());
  Groups groups;
  groups.layout = layout;
  groups.place = layout.coordinates_of(world->rank());
  const auto [tensor, data, pipeline] = groups.place;
  groups.tensor = world->split(layout.rank_of({0, data, pipeline}), tensor, "tensor");
  groups.data = world->split(layout.rank_of({tensor, 0, pipeline}), data, "data");
  groups.pipeline = world->split(layout.rank_of({tensor, data, 0}), pipeline, "pipeline");
  const bool tied_copy = layout.pipeline > 1 && (groups.is_first_stage() || groups.is_last_stage());
  groups.embedding =
      world->split(tied_copy ? layout.rank_of({tensor, data, 0}) : -1, pipeline, "embedding");
  groups.world = std::move(world);
  return groups;
}

}  // namespace trireme::comm
