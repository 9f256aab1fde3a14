#include "generate/decoder.hpp"

#include <algorithm>
#include <vector>

#include "core/error.hpp"
#include "grid/layout.hpp"
#include "model/spec.hpp"
#include "model/stage/stage_memory.hpp"

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

PositionTables::PositionTables(device::Backend& backend, const model::ModelSpec& spec,
                               const model::LayerSizes& sizes, std::int64_t positions,
                               std::int64_t pass_tokens) {
  const auto take_rotary = [&](model::Arena arena) {
    rotary_ = take_rotary_table(arena, spec, sizes, positions);
    return arena.bytes();
  };
  if (const std::size_t bytes = take_rotary(model::Arena()); bytes > 0) {
    rotary_memory_ = backend.allocate(bytes, "rotary positions");
    take_rotary(model::Arena(rotary_memory_.get()));
    write_rotary_table(backend, spec, rotary_);
  }
  if (spec.window() == 0 || spec.window() >= pass_tokens) return;
  std::vector<std::int32_t> starts(pass_tokens);
  model::narrow_to_window(spec.window(), /*micro_batch=*/1, starts);
  window_memory_ = backend.allocate(starts.size() * sizeof(std::int32_t), "window");
  backend.upload(window_memory_.get(), starts.data(), starts.size() * sizeof(std::int32_t));
}

Decoder::Scratch Decoder::take_scratch(model::Arena& arena, const model::LayerSizes& sizes) const {
  model::LayerSizes last = sizes;
  last.sequence = 1;
  Scratch scratch;
  scratch.head = head_.take(arena, last);
  scratch.ids = arena.take_ints(sizes.tokens());
  scratch.stream = arena.take(sizes.precision.activations, sizes.hidden_shape());
  scratch.embedding = embedding_.take(arena, sizes);
  scratch.blocks.resize(blocks_.size());
  arena.overlay(blocks_.size(),
                [&](std::size_t i) { scratch.blocks[i] = blocks_[i].take(arena, sizes); });
  std::vector<const model::TransformerBlock*> blocks;
  for (const model::TransformerBlock& block : blocks_) blocks.push_back(&block);
  scratch.workspace = take_workspace(arena, sizes, blocks);
  return scratch;
}

Decoder::Decoder(device::Backend& backend, const model::ParameterStore& parameters,
                 const model::ModelSpec& spec)
    : backend_(backend),
      spec_(spec),
      dtype_(parameters.precision().activations),
      embedding_(spec),
      head_(spec),
      tables_(backend, spec, sizes(1), capacity(), capacity()),
      logits_(spec.vocab) {
  for (int layer = 0; layer < spec.layers(); ++layer)
    blocks_.emplace_back(spec, layer).bind(parameters);
  embedding_.bind(parameters);
  head_.bind(parameters);
  model::Arena count;
  take_scratch(count, sizes(capacity()));
  scratch_memory_ = backend.allocate(count.bytes(), "activations");
  model::StageConfig longest{.spec = spec, .precision = mixed_precision(dtype_)};
  longest.spec.sequence = capacity();
  backend.reserve_workspace(model::kernel_workspace_bytes(longest));
}

model::LayerSizes Decoder::sizes(std::int64_t tokens) const {
  return {.hidden = spec_.hidden, .sequence = tokens, .precision = mixed_precision(dtype_)};
}

model::LayerContext Decoder::context(std::int64_t tokens) {
  model::LayerContext context(sizes(tokens), backend_, serial_);
  context.rotary = tables_.rotary();
  return context;
}

std::span<const double> Decoder::logits(std::span<const std::int32_t> context) {
  const auto size = static_cast<std::int64_t>(context.size());
  TRIREME_CHECK(size >= 1 && size <= capacity(), "a context of {} tokens, the model holds {}", size,
                capacity());
  for (const std::int32_t id : context)
    TRIREME_CHECK(id >= 0 && id < vocab(), "id {} in a vocabulary of {}", id, vocab());

  compute_logits(run(context));
  return logits_;
}

Tensor Decoder::run(std::span<const std::int32_t> ids) {
  const auto tokens = static_cast<std::int64_t>(ids.size());
  const model::LayerContext context = this->context(tokens);
  const model::PassInfo pass{.training = false, .document_start = tables_.window_starts()};
  model::Arena arena(scratch_memory_.get());
  const Scratch scratch = take_scratch(arena, context);
  const Tensor& stream = scratch.stream;
  backend_.upload(scratch.ids, ids.data(), ids.size_bytes());
  embedding_.forward(context, pass, {.ids = scratch.ids}, scratch.embedding, stream);
  for (std::size_t i = 0; i < blocks_.size(); ++i)
    blocks_[i].forward(context, scratch.workspace, pass, stream, scratch.blocks[i], stream);
  return stream.rows(tokens - 1, 1);
}

void Decoder::compute_logits(const Tensor& stream) {
  const model::LayerContext context = this->context(1);
  model::Arena arena(scratch_memory_.get());
  // The head's part comes first in the scratch memory, wherever `stream` is after it.
  const model::Head::Activations head = head_.take(arena, context);
  head_.logits(context, stream, head);
  dispatch(dtype_, [&](auto element) {
    std::vector<decltype(element)> values(logits_.size());
    backend_.download(values.data(), head.logits.data, values.size() * sizeof(element));
    std::copy(values.begin(), values.end(), logits_.begin());
  });
}

}  // namespace trireme::generate
