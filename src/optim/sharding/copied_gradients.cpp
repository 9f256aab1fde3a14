#include "optim/sharding/copied_gradients.hpp"

#include <algorithm>

#include "core/error.hpp"

namespace trireme::optim {
namespace {

constexpr std::int64_t kMaxElements = 1 << 18;  ///< summed at a time

}  // namespace

CopiedGradients::CopiedGradients(device::Backend& backend, model::ParameterStore& parameters,
                                 comm::Communicator* tensor, const Shards& shards, int data_rank)
    : backend_(backend),
      parameters_(parameters),
      tensor_(tensor),
      shards_(shards),
      data_rank_(shards.count() == 1 ? 0 : data_rank) {
  const std::size_t bytes =
      planned_bytes(parameters.placement(), tensor ? tensor->size() : 1, parameters.dtype());
  if (bytes > 0) slots_ = backend.allocate(bytes, "copied gradients");
}

std::size_t CopiedGradients::planned_bytes(const model::Placement& placement, int tensor_ranks,
                                           DType dtype) {
  int shards = 0;
  for (const model::LocalParameter& local : placement.parameters)
    if (local.copies > 1) {
      TRIREME_CHECK(tensor_ranks > 1, "'{}' is copied over a tensor group that is not known",
                    local.parameter->name);
      shards = std::max(shards, tensor_ranks / local.copies);
    }
  return shards * kMaxElements * size_of(wide(dtype));
}

void CopiedGradients::sum() {
  if (!slots_) return;
  for (const model::LocalParameter& local : parameters_.placement().parameters) {
    if (local.copies == 1 || local.shared) continue;
    for (const Range& bucket : shards_.buckets()) {
      const Range owned = shards_.owned_of(bucket, data_rank_);
      const std::int64_t last = std::min(owned.end, local.offset + local.elements());
      for (std::int64_t at = std::max(owned.begin, local.offset); at < last; at += kMaxElements) {
        const Range range{at, std::min(last, at + kMaxElements)};
        sum(parameters_.gradient_buffer().own(
                range, shards_.state_offset(bucket) + range.begin - owned.begin),
            local);
      }
    }
  }
}

void CopiedGradients::sum(const Tensor& gradient, const model::LocalParameter& local) {
  const int shards = tensor_->size() / local.copies;
  const Tensor slots{slots_.get(), gradient.dtype, {shards, gradient.size()}};
  void* own = slots.rows(tensor_->rank() / local.copies, 1).data;
  backend_.zero(slots);
  backend_.copy(own, gradient.data, gradient.bytes());
  tensor_->all_reduce(slots.data, slots.size(), slots.dtype, comm::Reduce::sum);
  backend_.copy(gradient.data, own, gradient.bytes());
}

}  // namespace trireme::optim
