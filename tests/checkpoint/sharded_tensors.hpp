// Tensors sharded over ranks as layouts shard them, with known values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.hpp"

namespace trireme::checkpoint {

/// A way to shard tensors over ranks.
enum class Sharding {
  first_rank,       ///< rank 0 has everything
  rows,             ///< consecutive rows
  columns,          ///< consecutive columns; tensors of one axis by rows
  qkv,              ///< a block of rows of each third
  flat,             ///< flat ranges, which may end within a row
  flat_of_columns,  ///< flat ranges of the column shards of two halves
  replicas,         ///< everything on every rank, owned by the last
  two_pieces,       ///< rows of the upper and of the lower half in separate memory
};
inline constexpr Sharding kShardings[] = {Sharding::first_rank, Sharding::rows,
                                          Sharding::columns,    Sharding::qkv,
                                          Sharding::flat,       Sharding::flat_of_columns,
                                          Sharding::replicas,   Sharding::two_pieces};

/// The value of element `index` of the tensor `name` in checkpoint number `version`.
double known_value(const std::string& name, std::int64_t index, std::int64_t version);

/// One rank's tensors and their memory.
class ShardedTensors {
 public:
  /// A logical tensor: name, shape, type.
  struct Logical {
    std::string name;
    Shape shape;
    DType dtype = DType::f32;
  };

  /// What rank `rank` of `size` has of `logicals` under `sharding`; elements are NaN.
  ShardedTensors(const std::vector<Logical>& logicals, Sharding sharding, int rank, int size);
  ShardedTensors(const ShardedTensors&) = delete;

  /// Sets every element to its known value.
  void fill(std::int64_t version);
  /// The first element that differs in any bit from its known value, as text; empty when none does.
  std::string first_difference(std::int64_t version) const;

  std::vector<LocalTensor> tensors;

 private:
  void add_piece(LocalTensor& tensor, grid::Hyperslabs slabs, bool owner);
  std::vector<std::vector<double>> memory_;
};

/// A small transformer's worth of tensors: every sharding applies to each.
std::vector<ShardedTensors::Logical> small_model();

}  // namespace trireme::checkpoint
