#include "model/layers/sequence_parallel.hpp"

namespace trireme::model {

Tensor sp_shard(const LayerContext& context, const Tensor& full) {
  if (context.sp_ranks() == 1) return full;
  const std::int64_t rows = full.shape[0] / context.sp_ranks();
  return full.rows(context.tensor.rank() * rows, rows);
}

void sp_reduce(const LayerContext& context, const Tensor& full) {
  if (context.sp_ranks() == 1)
    context.tensor.all_reduce(full.data, full.size(), full.dtype, comm::Reduce::sum);
  else
    context.tensor.reduce_scatter(full.data, full.size() / context.sp_ranks(), full.dtype);
}

std::unique_ptr<comm::Request> start_sp_reduce(const LayerContext& context, const Tensor& full) {
  if (context.sp_ranks() == 1)
    return context.tensor.start_all_reduce(full.data, full.size(), full.dtype, comm::Reduce::sum);
  return context.tensor.start_reduce_scatter(full.data, full.size() / context.sp_ranks(),
                                             full.dtype);
}

void sp_gather(const LayerContext& context, const Tensor& full) {
  if (context.sp_ranks() == 1) return;
  context.tensor.all_gather(full.data, full.size() / context.sp_ranks(), full.dtype);
}

Tensor sp_gather(const LayerContext& context, const Tensor& shard, const Tensor& full) {
  if (context.sp_ranks() == 1) return shard;
  const Tensor own = sp_shard(context, full);
  if (own.data != shard.data) context.backend.copy(own.data, shard.data, shard.bytes());
  sp_gather(context, full);
  return full;
}

}  // namespace trireme::model
