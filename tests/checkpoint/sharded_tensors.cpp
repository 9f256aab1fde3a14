#include "sharded_tensors.hpp"

#include <limits>

#include "core/error.hpp"
#include "core/philox.hpp"

namespace trireme::checkpoint {
namespace {

/// Part `index` of `parts` of [0, total): its begin; that of index + 1 is its end.
std::int64_t part_begin(std::int64_t total, int parts, int index) { return total * index / parts; }

/// The slabs without those that have no elements.
grid::Hyperslabs nonempty(const grid::Hyperslabs& slabs) {
  grid::Hyperslabs kept;
  for (const grid::Hyperslab& slab : slabs)
    if (slab.size() > 0) kept.push_back(slab);
  return kept;
}

/// Rows [part rank of size] of rows [begin, begin + count).
grid::Hyperslab row_part(const grid::Hyperslab& all, std::int64_t begin, std::int64_t count,
                         int rank, int size) {
  const std::int64_t first = part_begin(count, size, rank);
  return {begin + first, part_begin(count, size, rank + 1) - first, 0, all.columns};
}

grid::Hyperslab column_part(const grid::Hyperslab& all, int rank, int size) {
  const std::int64_t first = part_begin(all.columns, size, rank);
  return {0, all.rows, first, part_begin(all.columns, size, rank + 1) - first};
}

/// Calls `function(global index, element)` for each element of a piece, in memory order.
template <typename Function>
void for_each_element(const LocalTensor& tensor, const Piece& piece, Function&& function) {
  const std::int64_t width = grid::whole_tensor(tensor.shape).columns;
  std::int64_t at = 0;
  for (const grid::Hyperslab& slab : piece.slabs)
    for (std::int64_t row = slab.row; row < slab.row + slab.rows; ++row)
      for (std::int64_t column = slab.column; column < slab.column + slab.columns; ++column)
        function(row * width + column, at++);
}

}  // namespace

double known_value(const std::string& name, std::int64_t index, std::int64_t version) {
  return philox_normal(static_cast<std::uint64_t>(version), name_hash(name.c_str()),
                       static_cast<std::uint64_t>(index));
}

ShardedTensors::ShardedTensors(const std::vector<Logical>& logicals, Sharding sharding, int rank,
                               int size) {
  for (const Logical& logical : logicals) {
    LocalTensor& tensor =
        tensors.emplace_back(LocalTensor{logical.name, logical.shape, logical.dtype, {}});
    const grid::Hyperslab all = grid::whole_tensor(tensor.shape);
    const bool has_columns = tensor.shape.rank() == 2;
    switch (sharding) {
      case Sharding::first_rank:
        if (rank == 0) add_piece(tensor, {all}, true);
        break;
      case Sharding::rows:
        add_piece(tensor, {row_part(all, 0, all.rows, rank, size)}, true);
        break;
      case Sharding::columns:
        add_piece(
            tensor,
            {has_columns ? column_part(all, rank, size) : row_part(all, 0, all.rows, rank, size)},
            true);
        break;
      case Sharding::qkv: {
        grid::Hyperslabs blocks;
        for (int third = 0; third < 3; ++third) {
          const std::int64_t begin = part_begin(all.rows, 3, third);
          blocks.push_back(
              row_part(all, begin, part_begin(all.rows, 3, third + 1) - begin, rank, size));
        }
        add_piece(tensor, blocks, true);
        break;
      }
      case Sharding::flat:
        add_piece(tensor,
                  grid::slice_hyperslabs({all}, part_begin(all.size(), size, rank),
                                         part_begin(all.size(), size, rank + 1)),
                  true);
        break;
      case Sharding::flat_of_columns: {
        const int halves = size % 2 == 0 ? 2 : 1;
        const grid::Hyperslab half = has_columns
                                         ? column_part(all, rank % halves, halves)
                                         : row_part(all, 0, all.rows, rank % halves, halves);
        add_piece(
            tensor,
            grid::slice_hyperslabs({half}, part_begin(half.size(), size / halves, rank / halves),
                                   part_begin(half.size(), size / halves, rank / halves + 1)),
            true);
        break;
      }
      case Sharding::replicas:
        add_piece(tensor, {all}, rank == size - 1);
        break;
      case Sharding::two_pieces: {
        const std::int64_t upper = all.rows / 2;
        add_piece(tensor, {row_part(all, upper, all.rows - upper, rank, size)}, true);
        add_piece(tensor, {row_part(all, 0, upper, rank, size)}, true);
        break;
      }
    }
  }
}

void ShardedTensors::add_piece(LocalTensor& tensor, grid::Hyperslabs slabs, bool owner) {
  slabs = nonempty(slabs);
  auto& memory = memory_.emplace_back(static_cast<std::size_t>(count_elements(slabs)));
  tensor.pieces.push_back({slabs, memory.data(), owner});
  dispatch(tensor.dtype, [&](auto zero) {
    using Real = decltype(zero);
    for (std::size_t i = 0; i < memory.size(); ++i)
      reinterpret_cast<Real*>(memory.data())[i] = std::numeric_limits<Real>::quiet_NaN();
  });
}

void ShardedTensors::fill(std::int64_t version) {
  for (const LocalTensor& tensor : tensors)
    for (const Piece& piece : tensor.pieces)
      dispatch(tensor.dtype, [&](auto zero) {
        using Real = decltype(zero);
        for_each_element(tensor, piece, [&](std::int64_t index, std::int64_t at) {
          static_cast<Real*>(piece.data)[at] =
              static_cast<Real>(known_value(tensor.name, index, version));
        });
      });
}

std::string ShardedTensors::first_difference(std::int64_t version) const {
  std::string difference;
  for (const LocalTensor& tensor : tensors)
    for (const Piece& piece : tensor.pieces)
      dispatch(tensor.dtype, [&](auto zero) {
        using Real = decltype(zero);
        for_each_element(tensor, piece, [&](std::int64_t index, std::int64_t at) {
          const Real found = static_cast<const Real*>(piece.data)[at];
          const Real expected = static_cast<Real>(known_value(tensor.name, index, version));
          // NaN, which marks what was not read, differs from everything.
          if (found != expected && difference.empty())
            difference = fmt::format("{}, element {}: {} instead of {}", tensor.name, index, found,
                                     expected);
        });
      });
  return difference;
}

std::vector<ShardedTensors::Logical> small_model() {
  return {{"model/embedding/word", {23, 12}},
          {"model/layers/2/attention/qkv/weight", {36, 12}},
          {"model/layers/2/attention/qkv/bias", {36}},
          {"model/layers/10/mlp/down/weight", {12, 48}},
          {"model/final_norm/weight", {12}},
          {"optimizer/m/final_norm/weight", {12}, DType::f64},
          {"optimizer/v/embedding/word", {23, 12}, DType::f64}};
}

}  // namespace trireme::checkpoint
