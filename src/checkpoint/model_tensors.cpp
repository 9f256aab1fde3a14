#include "checkpoint/model_tensors.hpp"

namespace trireme::checkpoint {
namespace {

/// One LocalTensor per parameter of the table, without pieces.
std::vector<LocalTensor> empty_tensors(const model::ParameterStore& parameters,
                                       const std::string& prefix) {
  std::vector<LocalTensor> tensors;
  for (const model::Parameter& parameter : parameters.table())
    tensors.push_back({.name = prefix + parameter.name,
                       .shape = parameter.shape,
                       .dtype = wide(parameters.dtype())});
  return tensors;
}

void* element(const Tensor& flat, std::int64_t index) { return flat.rows(index, 0).data; }

}  // namespace

std::vector<LocalTensor> checkpoint_tensors(const model::ParameterStore& parameters,
                                            const optim::Optimizer& optimizer) {
  std::vector<LocalTensor> weights = empty_tensors(parameters, "model/");
  std::vector<LocalTensor> momentum = empty_tensors(parameters, "optimizer/m/");
  std::vector<LocalTensor> variance = empty_tensors(parameters, "optimizer/v/");
  const model::Parameter* first = parameters.table().data();
  for (const optim::OwnedPart& part : optimizer.owned_parts()) {
    const std::ptrdiff_t index = part.parameter - first;
    const auto add = [&](std::vector<LocalTensor>& tensors, void* data) {
      tensors[index].pieces.push_back({.boxes = part.boxes, .data = data, .owner = part.primary});
    };
    add(weights, optimizer.master(part).data);
    add(momentum, element(optimizer.momentum(), part.state_offset));
    add(variance, element(optimizer.variance(), part.state_offset));
  }
  for (auto* moments : {&momentum, &variance})
    weights.insert(weights.end(), std::make_move_iterator(moments->begin()),
                   std::make_move_iterator(moments->end()));
  return weights;
}

std::vector<LocalTensor> weight_tensors(const model::ParameterStore& parameters,
                                        bool first_data_rank) {
  TRIREME_CHECK(parameters.dtype() == wide(parameters.dtype()),
                "{} weights are not what a checkpoint holds", name_of(parameters.dtype()));
  std::vector<LocalTensor> tensors = empty_tensors(parameters, "model/");
  const model::Parameter* first = parameters.table().data();
  for (const model::LocalParameter& local : parameters.placement().parameters)
    tensors[local.parameter - first].pieces.push_back(
        {.boxes = local.boxes,
         .data = element(parameters.weights(), local.offset),
         .owner = local.primary && first_data_rank});
  return tensors;
}

}  // namespace trireme::checkpoint
