#include "comm/mpi/groups.hpp"

#include <utility>

#include "core/error.hpp"

namespace trireme::comm {

Groups make_groups(std::unique_ptr<MpiCommunicator> world, const grid::Layout& layout,
                   const Connect& connect) {
  TRIREME_CHECK(world->size() == layout.ranks(), "{} ranks for a layout of {}", world->size(),
                layout.ranks());
  Groups groups;
  groups.layout = layout;
  groups.place = layout.coordinates_of(world->rank());
  const auto [tensor, data, pipeline] = groups.place;
  const auto split = [&](int color, int key, const char* name) -> std::unique_ptr<Communicator> {
    std::unique_ptr<MpiCommunicator> part = world->split(color, key, name);
    if (!part || !connect) return part;
    return connect(std::move(part));
  };
  groups.tensor = split(layout.rank_of({0, data, pipeline}), tensor, "tensor");
  groups.data = split(layout.rank_of({tensor, 0, pipeline}), data, "data");
  groups.pipeline = split(layout.rank_of({tensor, data, 0}), pipeline, "pipeline");
  const bool tied_copy = layout.pipeline > 1 && (groups.is_first_stage() || groups.is_last_stage());
  groups.embedding =
      split(tied_copy ? layout.rank_of({tensor, data, 0}) : -1, pipeline, "embedding");
  groups.world = std::move(world);
  return groups;
}

}  // namespace trireme::comm
