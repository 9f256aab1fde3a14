#include "model/residual_stream.hpp"

namespace trireme::model {

Tensor own_part(const LayerContext& context, const Tensor& full) {
  if (context.stream_parts() == 1) return full;
  const std::int64_t rows = full.shape[0] / context.stream_parts();
  return full.rows(context.tensor.rank() * rows, rows);
}

void sum_partial(const LayerContext& context, const Tensor& full) {
  if (context.stream_parts() == 1)
    context.tensor.all_reduce(full.data, full.size(), full.dtype, comm::Reduce::sum);
  else
    context.tensor.reduce_scatter(full.data, full.size() / context.stream_parts(), full.dtype);
}

std::unique_ptr<comm::Request> start_sum_partial(const LayerContext& context, const Tensor& full) {
  if (context.stream_parts() == 1)
    return context.tensor.start_all_reduce(full.data, full.size(), full.dtype, comm::Reduce::sum);
  return context.tensor.start_reduce_scatter(full.data, full.size() / context.stream_parts(),
                                             full.dtype);
}

void gather(const LayerContext& context, const Tensor& full) {
  if (context.stream_parts() == 1) return;
  context.tensor.all_gather(full.data, full.size() / context.stream_parts(), full.dtype);
}

Tensor gather(const LayerContext& context, const Tensor& part, const Tensor& full) {
  if (context.stream_parts() == 1) return part;
  const Tensor own = own_part(context, full);
  if (own.data != part.data) context.backend.copy(own.data, part.data, part.bytes());
  gather(context, full);
  return full;
}

}  // namespace trireme::model
