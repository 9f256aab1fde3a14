// Muon (Jordan et al. 2024): the matrices of layers step along their orthogonalized momentum, all
// else by AdamW. A matrix is orthogonalized whole, whatever the layout: data ranks take turns, each
// gathers the momentum of its matrix from the shards of the others and of the tensor ranks.
#include <algorithm>
#include <cmath>

#include "optim/rules/update_rule.hpp"

namespace trireme::optim {
namespace {

constexpr std::size_t kAlignment = 256;

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

/// One logical matrix of a layer: a row block of a parameter (q, k or v; gate or up).
struct Matrix {
  const model::LocalParameter* local = nullptr;
  Range range;            ///< this rank's part, in the placement; [local_rows, local_columns]
  std::int64_t rows = 0;  ///< of the whole matrix
  std::int64_t columns = 0;
  std::int64_t local_rows = 0;
  std::int64_t local_columns = 0;
  int copies = 1;  ///< consecutive tensor ranks that hold this part

  std::int64_t elements() const { return rows * columns; }
  std::int64_t smaller() const { return std::min(rows, columns); }
  bool is_sharded() const { return range.size() < elements(); }
};

/// The matrices of the layers of `placement`, largest first, so that those of one round are about
/// equal.
std::vector<Matrix> matrices_of(const model::Placement& placement) {
  std::vector<Matrix> all;
  for (const model::LocalParameter& local : placement.parameters) {
    const model::Parameter& parameter = *local.parameter;
    if (group_of(parameter) != model::ParameterGroup::matrix) continue;
    const std::vector<model::RowBlock> blocks = parameter.blocks();
    std::int64_t begin = local.offset;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const grid::Hyperslab& slab = local.slabs[i];
      all.push_back({.local = &local,
                     .range = {begin, begin + slab.size()},
                     .rows = blocks[i].rows,
                     .columns = parameter.shape[1],
                     .local_rows = slab.rows,
                     .local_columns = slab.columns,
                     .copies = local.blocks_at(begin).copies});
      begin += slab.size();
    }
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Matrix& a, const Matrix& b) { return a.elements() > b.elements(); });
  return all;
}

/// Elements of the scratch tensors.
struct Scratch {
  std::int64_t slot = 0;     ///< this rank's part of a matrix
  std::int64_t matrix = 0;   ///< a whole one
  std::int64_t smaller = 0;  ///< its smaller extent
  std::int64_t shards = 0;   ///< the parts of all tensor ranks

  Scratch(const std::vector<Matrix>& matrices, int tensor_ranks) {
    for (const Matrix& each : matrices) {
      slot = std::max(slot, each.range.size());
      matrix = std::max(matrix, each.elements());
      smaller = std::max(smaller, each.smaller());
      if (each.is_sharded()) shards = std::max(shards, tensor_ranks * each.range.size());
    }
  }
  std::size_t bytes(DType type, int data_ranks) const {
    const auto of = [&](std::int64_t elements) { return aligned(elements * size_of(type)); };
    return kAlignment + of(data_ranks * slot) + 2 * of(matrix) + 2 * of(smaller * smaller) +
           of(shards);
  }
};

class Muon final : public UpdateRule {
 public:
  Muon(device::Backend& backend, const OwnedShard& shard, const OptimizerGroups& groups,
       const UpdateRuleConfig& config)
      : UpdateRule(backend, shard, config,
                   muon_bytes(shard.placement(), groups.data.size(), tensor_ranks(groups), config,
                              shard.precision())),
        data_(groups.data),
        tensor_(groups.tensor),
        type_(muon_type(config, shard.precision())),
        matrices_(matrices_of(shard.placement())) {
    const Scratch scratch(matrices_, tensor_ranks(groups));
    auto* next = static_cast<std::byte*>(extra());
    next +=
        aligned(reinterpret_cast<std::uintptr_t>(next)) - reinterpret_cast<std::uintptr_t>(next);
    const auto take = [&](std::int64_t elements) {
      const Tensor tensor{next, type_, {elements}};
      next += aligned(tensor.bytes());
      return tensor;
    };
    slots_ = take(data_.size() * scratch.slot);
    x_ = take(scratch.matrix);
    y_ = take(scratch.matrix);
    gram_ = take(scratch.smaller * scratch.smaller);
    squared_ = take(scratch.smaller * scratch.smaller);
    shards_ = take(scratch.shards);
    for (const Matrix& matrix : matrices_)
      TRIREME_CHECK(!matrix.is_sharded() || tensor_, "a shard of '{}' without its tensor group",
                    matrix.local->parameter->name);
  }

  /// Overwrites the gradients of matrices with their scaled, orthogonalized momentum. Collective
  /// over the data and tensor groups.
  void prepare(const RuleStep& step) override {
    const auto count = static_cast<std::size_t>(data_.size());
    for (std::size_t first = 0; first < matrices_.size(); first += count)
      run_round({matrices_.data() + first, std::min(count, matrices_.size() - first)}, step);
  }

  void update(const OwnedRange& owned, const RuleStep& step) override {
    if (owned.range.begin >= shard_.placement().common_size) {
      backend_.sgd({.weight = shard_.master(owned),
                    .gradient = shard_.gradient(owned),
                    .copy = shard_.rounded(owned),
                    .learning_rate = step.learning_rate,
                    .weight_decay = step.weight_decay,
                    .decayed = owned.decayed});
      return;
    }
    adamw(owned, step);
  }

 private:
  static int tensor_ranks(const OptimizerGroups& groups) {
    return groups.tensor ? groups.tensor->size() : 1;
  }

  /// Calls use(owned, part) for the pieces of `matrix` that this rank updates; `part` is a piece's
  /// place among the matrix's local elements.
  template <typename Use>
  void for_pieces(const Matrix& matrix, const Use& use) const {
    for (const OwnedPart& part : shard_.parts()) {
      const Range piece{std::max(part.weight_offset, matrix.range.begin),
                        std::min(part.range().end, matrix.range.end)};
      if (part.parameter != matrix.local->parameter || piece.size() <= 0) continue;
      use(OwnedRange{.range = piece,
                     .state_offset = part.state_offset + piece.begin - part.weight_offset},
          Range{piece.begin - matrix.range.begin, piece.end - matrix.range.begin});
    }
  }

  /// Data rank i orthogonalizes matrix i of `round`.
  void run_round(std::span<const Matrix> round, const RuleStep& step) {
    std::int64_t size = 0;
    for (const Matrix& matrix : round) size = std::max(size, matrix.range.size());
    const Tensor slots = slots_.rows(0, data_.size() * size).view({data_.size(), size});
    const auto slot = [&](std::size_t i) {
      return slots.rows(static_cast<std::int64_t>(i), 1).view({size});
    };
    // Pieces of other ranks are zeros in this rank's slots: their sum has every piece, exactly.
    const bool gathers = shard_.is_sharded() && data_.size() > 1;
    if (gathers) backend_.zero(slots);
    for (std::size_t i = 0; i < round.size(); ++i)
      for_pieces(round[i], [&](const OwnedRange& owned, const Range& part) {
        const bool reads = gathers || static_cast<int>(i) == data_.rank();
        backend_.muon_momentum({.gradient = shard_.gradient(owned),
                                .m = state(0, owned),
                                .out = reads ? slot(i).rows(part.begin, part.size()) : Tensor{},
                                .momentum = config_.momentum,
                                .gradient_scale = step.gradient_scale,
                                .nesterov = config_.nesterov});
      });
    if (gathers) data_.reduce_scatter(slots.data, size, type_);
    const auto own = static_cast<std::size_t>(data_.rank());
    if (own < round.size()) orthogonalize(round[own], slot(own).rows(0, round[own].range.size()));
    if (data_.size() > 1) data_.all_gather(slots.data, size, type_);
    for (std::size_t i = 0; i < round.size(); ++i)
      for_pieces(round[i], [&](const OwnedRange& owned, const Range& part) {
        backend_.scaled_copy(
            {.x = slot(i).rows(part.begin, part.size()),
             .out = shard_.summed_gradient(owned),
             .rows = 1,
             .columns = part.size(),
             .x_stride = part.size(),
             .out_stride = part.size(),
             .factor = muon_scale(config_.muon_scale, round[i].rows, round[i].columns)});
      });
  }

  /// Replaces `local`, this rank's part of a matrix, by that part of its orthogonalization.
  /// Collective over the tensor group, whose ranks all compute the whole matrix.
  void orthogonalize(const Matrix& matrix, const Tensor& local) {
    Tensor x = x_.rows(0, matrix.elements()).view({matrix.rows, matrix.columns});
    Tensor y = y_.rows(0, matrix.elements()).view({matrix.rows, matrix.columns});
    gather(matrix, local, x);
    backend_.muon_normalize({.x = x, .out = x});
    // The quintic whose slope at 0 is largest among those that keep singular values near 1.
    constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;
    constexpr int kIterations = 5;
    const std::int64_t r = matrix.smaller();
    const Tensor gram = gram_.rows(0, r * r).view({r, r});
    const Tensor squared = squared_.rows(0, r * r).view({r, r});
    const bool is_wide = matrix.rows <= matrix.columns;
    for (int i = 0; i < kIterations; ++i) {
      backend_.gemm({.a = x, .b = x, .c = gram, .transpose_a = !is_wide, .transpose_b = is_wide});
      backend_.gemm({.a = gram, .b = gram, .c = squared});
      backend_.muon_polynomial({gram, squared, gram, kA, kB, kC});
      backend_.gemm({.a = is_wide ? gram : x, .b = is_wide ? x : gram, .c = y});
      std::swap(x, y);
    }
    copy_local(matrix, x, local);
  }

  /// Assembles the whole matrix from the parts of the tensor ranks.
  void gather(const Matrix& matrix, const Tensor& local, const Tensor& whole) {
    if (!matrix.is_sharded()) return backend_.copy(whole.data, local.data, local.bytes());
    const std::int64_t size = local.size();
    const Tensor parts = shards_.rows(0, tensor_->size() * size).view({tensor_->size(), size});
    backend_.copy(parts.rows(tensor_->rank(), 1).data, local.data, local.bytes());
    tensor_->all_gather(parts.data, size, type_);
    for (int shard = 0; shard < tensor_->size() / matrix.copies; ++shard)
      backend_.scaled_copy({.x = parts.rows(shard * matrix.copies, 1).view({size}),
                            .out = shard_of(matrix, whole, shard),
                            .rows = matrix.local_rows,
                            .columns = matrix.local_columns,
                            .x_stride = matrix.local_columns,
                            .out_stride = matrix.columns});
  }

  /// Copies this rank's part of `whole` to `local`.
  void copy_local(const Matrix& matrix, const Tensor& whole, const Tensor& local) {
    const int shard = matrix.is_sharded() ? tensor_->rank() / matrix.copies : 0;
    backend_.scaled_copy({.x = shard_of(matrix, whole, shard),
                          .out = local,
                          .rows = matrix.local_rows,
                          .columns = matrix.local_columns,
                          .x_stride = matrix.columns,
                          .out_stride = matrix.local_columns});
  }

  /// The elements of `whole` from the first one of a shard on.
  static Tensor shard_of(const Matrix& matrix, const Tensor& whole, int shard) {
    const std::int64_t first = matrix.local_columns < matrix.columns
                                   ? shard * matrix.local_columns
                                   : shard * matrix.local_rows * matrix.columns;
    return whole.view({whole.size()}).rows(first, whole.size() - first);
  }

  comm::Communicator& data_;
  comm::Communicator* tensor_;
  DType type_;
  std::vector<Matrix> matrices_;
  Tensor slots_;           ///< one for each data rank
  Tensor x_, y_;           ///< a matrix before and after an iteration
  Tensor gram_, squared_;  ///< of the smaller extent
  Tensor shards_;          ///< one for each tensor rank
};

}  // namespace

DType muon_type(const UpdateRuleConfig& config, const Precision& precision) {
  return config.muon_bf16 ? DType::bf16 : precision.master;
}

double muon_scale(MuonScale scale, std::int64_t rows, std::int64_t columns) {
  const auto m = static_cast<double>(rows), n = static_cast<double>(columns);
  switch (scale) {
    case MuonScale::match_rms:
      return 0.2 * std::sqrt(std::max(m, n));
    case MuonScale::spectral:
      return std::sqrt(std::max(1.0, m / n));
  }
  throw InternalError("an unknown scale of Muon");
}

std::size_t muon_bytes(const model::Placement& placement, int data_ranks, int tensor_ranks,
                       const UpdateRuleConfig& config, const Precision& precision) {
  return Scratch(matrices_of(placement), tensor_ranks)
      .bytes(muon_type(config, precision), data_ranks);
}

std::unique_ptr<UpdateRule> make_muon(device::Backend& backend, const OwnedShard& shard,
                                      const OptimizerGroups& groups,
                                      const UpdateRuleConfig& config) {
  return std::make_unique<Muon>(backend, shard, groups, config);
}

}  // namespace trireme::optim
