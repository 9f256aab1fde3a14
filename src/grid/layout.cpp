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

}  // namespace trireme::grid
