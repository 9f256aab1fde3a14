// Megatron-Core's format torch_dist, which is PyTorch's distributed checkpoint: `.metadata` is a
// pickle with the shape of each tensor and the place of its chunks, `__R_I.distcp` files hold each
// chunk as a file of torch.save(), common.pt the rest. Layers may be stacked in one tensor, whose
// first axis is their number.
// Sources: PyTorch, torch/distributed/checkpoint/metadata.py; Megatron-LM, core/dist_checkpointing.
#include <fmt/format.h>

#include <algorithm>

#include "convert/megatron/foreign.hpp"
#include "core/error.hpp"
#include "core/files.hpp"

namespace trireme::convert::megatron {

namespace fs = std::filesystem;
using torch::Value;

namespace {

using Sizes = std::vector<std::int64_t>;

/// A part of a tensor and its bytes.
struct Chunk {
  Sizes offsets;
  std::string file;
  std::uint64_t begin = 0, bytes = 0;
};

/// A tensor of the metadata.
struct Distributed {
  Sizes shape;
  std::vector<Chunk> chunks;
};

/// The numbers of a torch.Size, which is a call with one tuple.
Sizes sizes_of(const Value* value) {
  Sizes sizes;
  if (value && value->is(Value::Kind::object) && value->items.size() == 1) value = value->items[0];
  if (value)
    for (const Value* item : value->items) sizes.push_back(item->integer);
  return sizes;
}

/// The tensors of `.metadata` by name, those with chunks.
std::map<std::string, Distributed> read_metadata(const Value& root, const std::string& where) {
  std::map<std::string, Distributed> tensors;
  const Value* descriptions = root.find("state_dict_metadata");
  const Value* places = root.find("storage_data");
  if (!descriptions || !places)
    throw DataError("{} is no metadata of a distributed checkpoint", where);
  for (const auto& [name, description] : descriptions->fields())
    if (const Value* size = description->find("size")) tensors[name->text].shape = sizes_of(size);
  for (const auto& [index, place] : places->fields()) {
    const Value* name = index->find("fqn");
    const Value* file = place->find("relative_path");
    const Value* begin = place->find("offset");
    const Value* bytes = place->find("length");
    const auto tensor = name ? tensors.find(name->text) : tensors.end();
    if (tensor == tensors.end() || !file || !begin || !bytes) continue;
    if (file->text.empty() || file->text.find('/') != std::string::npos || begin->integer < 0 ||
        bytes->integer < 0)
      throw DataError("{}: a chunk of '{}' has no place in the folder", where, name->text);
    tensor->second.chunks.push_back({sizes_of(index->find("offset")), file->text,
                                     static_cast<std::uint64_t>(begin->integer),
                                     static_cast<std::uint64_t>(bytes->integer)});
  }
  return tensors;
}

/// Copies the elements of a chunk to their place in the whole tensor. Rows of the last axis are
/// contiguous in both.
void place_chunk(const std::vector<float>& from, const Sizes& extents, const Chunk& chunk,
                 const Sizes& shape, std::vector<float>& whole) {
  const std::size_t axes = shape.size();
  const std::int64_t row = axes == 0 ? 1 : extents.back();
  Sizes index(axes, 0);
  for (std::int64_t done = 0; done < static_cast<std::int64_t>(from.size()); done += row) {
    std::int64_t at = 0;
    for (std::size_t axis = 0; axis < axes; ++axis)
      at = at * shape[axis] + chunk.offsets[axis] + index[axis];
    std::copy_n(from.begin() + done, row, whole.begin() + at);
    for (std::size_t axis = axes; axis > 1; --axis) {
      if (++index[axis - 2] < extents[axis - 2]) break;
      index[axis - 2] = 0;
    }
  }
}

/// The whole tensor; empty if its chunks are not boxes of it, as those of the distributed
/// optimizer's flat ranges. Throws DataError for damaged chunks.
std::vector<float> read_whole(const fs::path& folder, const Distributed& tensor) {
  std::vector<std::pair<std::vector<float>, Sizes>> parts;
  std::int64_t elements = 0;
  for (const Chunk& chunk : tensor.chunks) {
    const torch::Archive archive(folder / chunk.file, chunk.begin, chunk.bytes);
    const auto stored = torch::as_tensor(archive.root());
    if (!stored || chunk.offsets.size() != tensor.shape.size()) return {};
    // Axes in front of the stored ones, such as that of stacked layers, have one element.
    Sizes extents = stored->shape;
    while (extents.size() < tensor.shape.size()) extents.insert(extents.begin(), 1);
    if (extents.size() != tensor.shape.size()) return {};
    for (std::size_t axis = 0; axis < extents.size(); ++axis)
      if (chunk.offsets[axis] < 0 || extents[axis] > tensor.shape[axis] ||
          chunk.offsets[axis] > tensor.shape[axis] - extents[axis])
        return {};
    parts.emplace_back(archive.read(*stored), extents);
    elements += static_cast<std::int64_t>(parts.back().first.size());
  }
  std::int64_t wanted = 1;
  for (const std::int64_t extent : tensor.shape) {
    if (extent <= 0 || wanted > elements) return {};
    wanted *= extent;
  }
  if (wanted != elements) return {};
  std::vector<float> whole(static_cast<std::size_t>(wanted));
  for (std::size_t i = 0; i < parts.size(); ++i)
    place_chunk(parts[i].first, parts[i].second, tensor.chunks[i], tensor.shape, whole);
  return whole;
}

/// Adds the tensor `name`, one or stacked layers; false if its form is unknown.
bool add_tensor(const fs::path& folder, const std::string& name, const Distributed& tensor,
                Tensors& tensors) {
  constexpr std::string_view kLayers = "layers.";
  const std::size_t layers = name.find(kLayers);
  const std::size_t after = layers == std::string::npos ? layers : layers + kLayers.size();
  const bool stacked =
      after < name.size() && !(name[after] >= '0' && name[after] <= '9') && tensor.shape.size() > 1;
  const auto key = parse_key(stacked ? name.substr(0, after) + "0." + name.substr(after) : name);
  if (!key) return false;
  std::vector<float> whole = read_whole(folder, tensor);
  if (whole.empty()) return false;
  if (!stacked) {
    tensors[logical_name(*key, 0)] = {{.values = std::move(whole), .shape = tensor.shape}};
    return true;
  }
  const Sizes shape(tensor.shape.begin() + 1, tensor.shape.end());
  const auto each = static_cast<std::ptrdiff_t>(whole.size()) / tensor.shape[0];
  for (std::int64_t layer = 0; layer < tensor.shape[0]; ++layer) {
    const auto begin = whole.begin() + layer * each;
    tensors[logical_name(*key, static_cast<int>(layer))] = {
        {.values = {begin, begin + each}, .shape = shape}};
  }
  return true;
}

bool covers(const Tensors& tensors, const Tensors& weights) {
  return std::all_of(weights.begin(), weights.end(), [&](const auto& entry) {
    return entry.first == "head/weight" || tensors.contains(entry.first);
  });
}

}  // namespace

Foreign read_distributed(const fs::path& folder) {
  Foreign foreign{.folder = folder};
  const fs::path file = folder / ".metadata";
  const MappedFile metadata(file);
  const torch::Pickle pickle({reinterpret_cast<const char*>(metadata.data()), metadata.size()},
                             file.string());
  const std::string where = fmt::format("'{}'", file.string());
  for (const auto& [name, tensor] : read_metadata(pickle.root(), where)) {
    constexpr std::string_view kState = "optimizer.state.";
    Tensors* target = &foreign.weights;
    std::string model_name = name;
    if (name.starts_with(kState)) {
      const std::size_t dot = std::min(name.find('.', kState.size()), name.size() - 1);
      const std::string kind = name.substr(kState.size(), dot - kState.size());
      target = kind == "exp_avg"      ? &foreign.m
               : kind == "exp_avg_sq" ? &foreign.v
               : kind == "fp32_param" ? &foreign.masters
                                      : nullptr;
      model_name = name.substr(dot + 1);
    }
    const bool read = target && add_tensor(folder, model_name, tensor, *target);
    if (!read && !is_redundant(name) && !name.starts_with("rng_state"))
      foreign.unread.push_back(name);
  }
  foreign.archives.push_back(std::make_unique<torch::Archive>(folder / "common.pt"));
  const torch::Archive& common = *foreign.archives.back();
  read_common(common, foreign);
  const bool has_moments = covers(foreign.m, foreign.weights) && covers(foreign.v, foreign.weights);
  if (!has_moments) {
    foreign.m.clear();
    foreign.v.clear();
  }
  if (!covers(foreign.masters, foreign.weights)) foreign.masters.clear();
  return foreign;
}

}  // namespace trireme::convert::megatron
