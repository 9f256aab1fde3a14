#include "grid/layout.hpp"

#include <algorithm>
#include <bit>
#include <numeric>

#include "core/error.hpp"

namespace trireme::grid {

int Layout::rank_of(const Coordinates& place) const {
  return place.tensor + tensor * (place.data + data * place.pipeline);
}

Coordinates Layout::coordinates_of(int rank) const {
  TRIREME_CHECK(rank >= 0 && rank < ranks(), "rank {} of {}", rank, ranks());
  return {rank % tensor, rank / tensor % data, rank / (tensor * data)};
}

LayerRange Layout::layers_of(int stage, int chunk) const {
  TRIREME_CHECK(stage >= 0 && stage < pipeline && std::ssize(partition) == pipeline,
                "stage {} of {}, partition of {}", stage, pipeline, partition.size());
  TRIREME_CHECK(chunk >= 0 && chunk < chunks && partition[stage] % chunks == 0,
                "chunk {} of {} of {} layers", chunk, chunks, partition[stage]);
  const int per_round = std::accumulate(partition.begin(), partition.end(), 0) / chunks;
  const int before = std::accumulate(partition.begin(), partition.begin() + stage, 0) / chunks;
  return {chunk * per_round + before, partition[stage] / chunks};
}

ShardRange padded_shard(std::int64_t total, int shards, int index) {
  const std::int64_t even = (total + shards - 1) / shards;
  const auto multiple = static_cast<std::int64_t>(std::bit_floor(
      static_cast<std::uint64_t>(even < 256 ? 1 : std::min<std::int64_t>(even / 8, 128))));
  const std::int64_t padded = (even + multiple - 1) / multiple * multiple;
  return {std::min(total, index * padded), std::min(total, (index + 1) * padded), padded};
}

namespace {

/// Appends elements [begin, end) of one slab, counted in its row-major order: at most the end of a
/// row, whole rows, and the beginning of a row.
void append_part(Hyperslabs& parts, const Hyperslab& slab, std::int64_t begin, std::int64_t end) {
  while (begin < end) {
    const std::int64_t column = begin % slab.columns;
    const bool starts_a_row = column == 0 && end - begin >= slab.columns;
    const std::int64_t rows = starts_a_row ? (end - begin) / slab.columns : 1;
    const std::int64_t columns =
        starts_a_row ? slab.columns : std::min(slab.columns - column, end - begin);
    parts.push_back({slab.row + begin / slab.columns, rows, slab.column + column, columns});
    begin += rows * columns;
  }
}

}  // namespace

std::int64_t count_elements(const Hyperslabs& slabs) {
  std::int64_t count = 0;
  for (const Hyperslab& slab : slabs) count += slab.size();
  return count;
}

Hyperslab whole_tensor(const Shape& shape) {
  TRIREME_CHECK(shape.rank() == 1 || shape.rank() == 2,
                "a tensor of shape {} has {} axes, not 1 or 2", to_string(shape), shape.rank());
  return {0, shape[0], 0, shape.rank() == 2 ? shape[1] : 1};
}

Hyperslabs slice_hyperslabs(const Hyperslabs& slabs, std::int64_t begin, std::int64_t end) {
  TRIREME_CHECK(0 <= begin && begin <= end && end <= count_elements(slabs),
                "elements [{}, {}) of hyperslabs with {}", begin, end, count_elements(slabs));
  Hyperslabs parts;
  std::int64_t offset = 0;
  for (const Hyperslab& slab : slabs) {
    append_part(parts, slab, std::max<std::int64_t>(begin - offset, 0),
                std::min(end - offset, slab.size()));
    offset += slab.size();
  }
  return parts;
}

void check_hyperslabs(const std::string& tensor, const Shape& shape, const Hyperslabs& slabs) {
  const Hyperslab all = whole_tensor(shape);
  const Hyperslab* last = nullptr;
  for (const Hyperslab& slab : slabs) {
    TRIREME_CHECK(slab.row >= 0 && slab.rows > 0 && slab.row + slab.rows <= all.rows &&
                      slab.column >= 0 && slab.columns > 0 &&
                      slab.column + slab.columns <= all.columns,
                  "tensor '{}' {}: rows {}+{}, columns {}+{} are not inside", tensor,
                  to_string(shape), slab.row, slab.rows, slab.column, slab.columns);
    if (last) {
      const bool same_row = last->rows == 1 && slab.rows == 1 && last->row == slab.row;
      TRIREME_CHECK(
          same_row ? last->column + last->columns <= slab.column
                   : last->row + last->rows <= slab.row,
          "tensor '{}' {}: the hyperslab at row {}, column {} does not come after the one at "
          "row {}, column {}",
          tensor, to_string(shape), slab.row, slab.column, last->row, last->column);
    }
    last = &slab;
  }
}

}  // namespace trireme::grid
