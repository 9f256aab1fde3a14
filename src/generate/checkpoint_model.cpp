#include "generate/checkpoint_model.hpp"

#include <vector>

#include "core/error.hpp"
#include "grid/layout.hpp"
#include "model/spec.hpp"

namespace trireme::generate {
namespace {

constexpr const char* kGroup = "model/";
constexpr const char* kWordEmbedding = "model/embedding/word";

}  // namespace

CheckpointModel::CheckpointModel(const std::filesystem::path& path) : path_(path), reader_(path) {}

const checkpoint::TensorInfo& CheckpointModel::tensor(const std::string& name) const {
  const checkpoint::TensorInfo* found = header().find(name);
  if (!found) throw DataError("'{}' has no tensor '{}'", path_.string(), name);
  return *found;
}

std::int64_t CheckpointModel::vocab() const { return tensor(kWordEmbedding).shape[0]; }

std::unique_ptr<model::ParameterStore> CheckpointModel::weights(const model::ModelSpec& spec,
                                                                device::Backend& backend) const {
  const DType dtype = tensor(kWordEmbedding).dtype;
  const grid::Layout layout{.partition = {static_cast<int>(spec.layers())}};
  auto parameters =
      std::make_unique<model::ParameterStore>(backend, model::declare_parameters(spec), layout,
                                              grid::Coordinates{}, mixed_precision(dtype));
  std::vector<std::byte> values;
  for (const model::LocalParameter& local : parameters->placement().parameters) {
    const std::string name = kGroup + local.parameter->name;
    const Shape& shape = local.parameter->shape;
    if (const Shape& stored = tensor(name).shape; stored != shape)
      throw DataError("'{}': tensor '{}' has shape {}, but its deck's model needs {}",
                      path_.string(), name, to_string(stored), to_string(shape));
    // The rows that pad the vocabulary come last and stay zero.
    values.resize(shape.size() * size_of(dtype));
    reader_.read_whole(name, dtype, values.data());
    backend.upload(model::slice(parameters->weights(), local).data, values.data(), values.size());
  }
  return parameters;
}

}  // namespace trireme::generate
