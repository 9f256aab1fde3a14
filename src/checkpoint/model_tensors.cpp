// The tensors of a model and its optimizer, as a checkpoint stores them.
#include "checkpoint/checkpoint.hpp"
#include "model/parameters/store.hpp"
#include "optim/optimizer.hpp"

namespace trireme::checkpoint {
namespace {

/// One LocalTensor per parameter of the table, without pieces.
std::vector<LocalTensor> empty_tensors(const model::ParameterStore& parameters,
                                       const std::string& prefix) {
  std::vector<LocalTensor> tensors;
  for (const model::Parameter& parameter : parameters.table())
    tensors.push_back({.name = prefix + parameter.name,
                       .shape = parameter.shape,
                       .dtype = parameters.precision().master});
  return tensors;
}

void* element(const Tensor& flat, std::int64_t index) { return flat.rows(index, 0).data; }

}  // namespace

std::vector<LocalTensor> checkpoint_tensors(const model::ParameterStore& parameters,
                                            const optim::Optimizer& optimizer) {
  std::vector<LocalTensor> all;
  const auto add = [&](const std::string& group, const auto& data_of) {
    std::vector<LocalTensor> tensors = empty_tensors(parameters, group + "/");
    for (const optim::OwnedPart& part : optimizer.owned_parts())
      tensors[part.parameter - parameters.table().data()].pieces.push_back(
          {.slabs = part.slabs, .data = data_of(part), .owner = part.primary});
    all.insert(all.end(), std::make_move_iterator(tensors.begin()),
               std::make_move_iterator(tensors.end()));
  };
  add("model", [&](const optim::OwnedPart& part) { return optimizer.master(part).data; });
  for (const optim::OptimizerState& state : optimizer.states())
    add("optimizer/" + state.name,
        [&](const optim::OwnedPart& part) { return element(state.tensor, part.state_offset); });
  return all;
}

std::vector<LocalTensor> weight_tensors(const model::ParameterStore& parameters,
                                        bool first_data_rank) {
  TRIREME_CHECK(parameters.precision().weights == parameters.precision().master,
                "{} weights are not what a checkpoint holds",
                name_of(parameters.precision().weights));
  std::vector<LocalTensor> tensors = empty_tensors(parameters, "model/");
  const model::Parameter* first = parameters.table().data();
  for (const model::LocalParameter& local : parameters.placement().parameters)
    tensors[local.parameter - first].pieces.push_back(
        {.slabs = local.slabs,
         .data = element(parameters.weights(), local.offset),
         .owner = local.primary && first_data_rank});
  return tensors;
}

}  // namespace trireme::checkpoint
