#include "generate/checkpoint_model.hpp"

#include <vector>

#include "core/error.hpp"
#include "grid/layout.hpp"
#include "model/spec.hpp"

namespace trireme::generate {
namespace {

constexpr const char* kGroup = "model/";
constexpr const char* kWordEmbedding = "model/embedding/word";

/// The elements of `slabs` of a whole tensor of `size`-byte elements, in their order.
std::vector<std::byte> gather_slabs(const Shape& shape, const grid::Hyperslabs& slabs,
                                    const std::vector<std::byte>& whole, std::size_t size) {
  const std::int64_t columns = grid::whole_tensor(shape).columns;
  std::vector<std::byte> part;
  part.reserve(grid::count_elements(slabs) * size);
  for (const grid::Hyperslab& slab : slabs)
    for (std::int64_t row = slab.row; row < slab.row + slab.rows; ++row) {
      const auto begin = whole.begin() + (row * columns + slab.column) * size;
      part.insert(part.end(), begin, begin + slab.columns * size);
    }
  return part;
}

/// `elements` rounded from one type to another.
std::vector<std::byte> converted(const std::vector<std::byte>& elements, DType from, DType to) {
  if (from == to) return elements;
  std::vector<float> values(elements.size() / size_of(from));
  convert_to_float(elements.data(), values.size(), from, values.data());
  std::vector<std::byte> out(values.size() * size_of(to));
  convert_from_float(values.data(), values.size(), to, out.data());
  return out;
}

}  // namespace

CheckpointModel::CheckpointModel(const std::filesystem::path& path) : path_(path), reader_(path) {}

const checkpoint::TensorInfo& CheckpointModel::tensor(const std::string& name) const {
  const checkpoint::TensorInfo* found = header().find(name);
  if (!found) throw DataError("'{}' has no tensor '{}'", path_.string(), name);
  return *found;
}

std::int64_t CheckpointModel::vocab() const { return tensor(kWordEmbedding).shape[0]; }

DType CheckpointModel::dtype() const { return tensor(kWordEmbedding).dtype; }

std::unique_ptr<model::ParameterStore> CheckpointModel::weights(const model::ModelSpec& spec,
                                                                device::Backend& backend) const {
  return weights(spec, backend, {.partition = {static_cast<int>(spec.layers())}}, {}, dtype());
}

std::unique_ptr<model::ParameterStore> CheckpointModel::weights(const model::ModelSpec& spec,
                                                                device::Backend& backend,
                                                                const grid::Layout& layout,
                                                                const grid::Coordinates& place,
                                                                DType dtype) const {
  const DType stored_dtype = this->dtype();
  auto parameters = std::make_unique<model::ParameterStore>(
      backend, model::declare_parameters(spec), layout, place, mixed_precision(dtype));
  std::vector<std::byte> whole;
  for (const model::LocalParameter& local : parameters->placement().parameters) {
    const std::string name = kGroup + local.parameter->name;
    const Shape& shape = local.parameter->shape;
    if (const Shape& stored = tensor(name).shape; stored != shape)
      throw DataError("'{}': tensor '{}' has shape {}, but its deck's model needs {}",
                      path_.string(), name, to_string(stored), to_string(shape));
    // The rows that pad the vocabulary come last and stay zero.
    whole.resize(shape.size() * size_of(stored_dtype));
    reader_.read_whole(name, stored_dtype, whole.data());
    const auto part = converted(gather_slabs(shape, local.slabs, whole, size_of(stored_dtype)),
                                stored_dtype, dtype);
    backend.upload(model::slice(parameters->weights(), local).data, part.data(), part.size());
  }
  return parameters;
}

}  // namespace trireme::generate
