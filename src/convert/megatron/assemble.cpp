// From the shards of tensor ranks to logical tensors.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "convert/megatron/foreign.hpp"
#include "core/error.hpp"

namespace trireme::convert::megatron {
namespace {

using model::TensorSharding;

/// A matrix [rows, columns]; vectors have one column.
struct Matrix {
  std::int64_t rows = 0, columns = 1;
  std::vector<float> values;

  float* row(std::int64_t r) { return values.data() + r * columns; }
  const float* row(std::int64_t r) const { return values.data() + r * columns; }
};

Matrix read(const Shard& shard, const model::Parameter& parameter) {
  const auto rank = static_cast<std::size_t>(parameter.shape.rank());
  if (shard.shape.size() != rank)
    throw DataError("'{}' has shape [{}] in the checkpoint, but its logical tensor has {} axes",
                    parameter.name, fmt::join(shard.shape, ", "), rank);
  return {
      .rows = shard.shape[0], .columns = rank == 2 ? shard.shape[1] : 1, .values = shard.read()};
}

/// The rows of a tensor rank's qkv projection in the order q, k, v, each by head. With fewer
/// key-value than query heads the foreign order is, for each group, its query heads, key and value.
Matrix reorder_qkv(const Matrix& from, const model::Parameter& parameter, QkvOrder order,
                   std::int64_t head_dim) {
  const auto& blocks = parameter.row_blocks;
  const std::int64_t queries = blocks[0] / blocks[1];  // query heads of a group
  const std::int64_t parts = queries + 2;
  const std::int64_t groups = from.rows / (parts * head_dim);
  if (groups * parts * head_dim != from.rows || (order != QkvOrder::head_split_row && queries > 1))
    throw DataError("'{}' has {} rows on a tensor rank, which are not heads of {} rows",
                    parameter.name, from.rows, head_dim);
  Matrix to{from.rows, from.columns, std::vector<float>(from.values.size())};
  for (std::int64_t group = 0; group < groups; ++group)
    for (std::int64_t part = 0; part < parts; ++part)
      for (std::int64_t row = 0; row < head_dim; ++row) {
        const std::int64_t source =
            order == QkvOrder::split_head_row   ? (part * groups + group) * head_dim + row
            : order == QkvOrder::head_row_split ? (group * head_dim + row) * parts + part
                                                : (group * parts + part) * head_dim + row;
        const std::int64_t head = part < queries ? group * queries + part : groups * part + group;
        std::copy_n(from.row(source), from.columns, to.row(head * head_dim + row));
      }
  return to;
}

/// Concatenates rows; of row blocks each block by itself.
std::vector<float> join_rows(const std::vector<Matrix>& shards, const model::Parameter& parameter) {
  std::vector<std::int64_t> blocks = parameter.row_blocks;
  if (blocks.empty()) blocks.push_back(parameter.shape[0]);
  const auto count = static_cast<std::int64_t>(shards.size());
  std::vector<float> values;
  std::int64_t begin = 0;
  for (const std::int64_t block : blocks) {
    const std::int64_t rows = block / count;
    for (const Matrix& shard : shards)
      values.insert(values.end(), shard.row(begin), shard.row(begin + rows));
    begin += rows;
  }
  return values;
}

std::vector<float> join_columns(const std::vector<Matrix>& shards) {
  std::vector<float> values;
  for (std::int64_t row = 0; row < shards[0].rows; ++row)
    for (const Matrix& shard : shards)
      values.insert(values.end(), shard.row(row), shard.row(row) + shard.columns);
  return values;
}

}  // namespace

std::vector<float> assemble(const std::vector<Shard>& shards, const model::Parameter& parameter,
                            QkvOrder order, std::int64_t head_dim) {
  const bool vocabulary = parameter.sharding == TensorSharding::vocabulary;
  const bool by_rows = parameter.sharding == TensorSharding::rows;
  const bool by_columns =
      parameter.sharding == TensorSharding::columns && parameter.shape.rank() == 2;
  const std::size_t used = vocabulary || by_rows || by_columns ? shards.size() : 1;
  std::vector<Matrix> parts;
  std::int64_t rows = 0, columns = 0;
  for (std::size_t i = 0; i < used; ++i) {
    Matrix part = read(shards[i], parameter);
    if (parameter.name.find("attention/qkv/") != std::string::npos)
      part = reorder_qkv(part, parameter, order, head_dim);
    rows = by_columns ? part.rows : rows + part.rows;
    columns = by_columns ? columns + part.columns : part.columns;
    parts.push_back(std::move(part));
  }
  const std::int64_t want_rows = parameter.shape[0];
  const std::int64_t want_columns = parameter.shape.rank() == 2 ? parameter.shape[1] : 1;
  const bool equal_parts = std::all_of(parts.begin(), parts.end(), [&](const Matrix& part) {
    return part.rows == parts[0].rows && part.columns == parts[0].columns;
  });
  if (!equal_parts || columns != want_columns ||
      (vocabulary ? rows < want_rows : rows != want_rows))
    throw DataError(
        "'{}': {} of tensor ranks {} [{}, {}], but the deck's model needs [{}, {}]: is the file of "
        "a rank missing?",
        parameter.name, used == 1 ? "1 shard" : fmt::format("{} shards", used),
        used == 1 ? "makes" : "make", rows, columns, want_rows, want_columns);
  if (by_columns) return join_columns(parts);
  if (by_rows) return join_rows(parts, parameter);
  std::vector<float> values;
  for (const Matrix& part : parts)
    values.insert(values.end(), part.values.begin(), part.values.end());
  values.resize(static_cast<std::size_t>(want_rows * want_columns));
  return values;
}

}  // namespace trireme::convert::megatron
