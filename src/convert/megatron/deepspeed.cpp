// DeepSpeed's checkpoints, global_stepN: mp_rank_TT_model_states.pt with the model of a tensor
// rank, or layer_LL-model_TT-model_states.pt of a pipeline; and
// [bf16_]zero_pp_rank_D_mp_rank_TT_optim_states.pt with the shards of ZeRO stages 1 and 2.
#include "convert/megatron/foreign.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <set>

#include "core/error.hpp"

namespace trireme::convert::megatron {

namespace fs = std::filesystem;
using torch::Value;

namespace {

/// The files of a folder, by (layer or data rank, model rank).
using Files = std::map<std::pair<int, int>, const torch::Archive*>;

/// The number after `before` in `text`; empty if there is none.
std::optional<int> number_after(std::string_view text, std::string_view before) {
  const std::size_t at = text.find(before);
  if (at == std::string_view::npos) return std::nullopt;
  const char* begin = text.data() + at + before.size();
  int number = 0;
  const auto [end, error] = std::from_chars(begin, text.data() + text.size(), number);
  return error == std::errc() && end != begin ? std::optional(number) : std::nullopt;
}

/// The numbers of the modules of a pipeline that are layers: those with an attention.
std::set<int> layer_modules(const Files& layers) {
  std::set<int> modules;
  for (const auto& [place, archive] : layers)
    for (const auto& [name, tensor] : flatten(archive->root()))
      if (name.find("query_key_value.weight") != std::string::npos) modules.insert(place.first);
  return modules;
}

struct Folder {
  Files models, layers, optimizers;
};

Folder open_files(const fs::path& path, Foreign& foreign) {
  Folder folder;
  for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
    const std::string name = entry.path().filename().string();
    Files* files =
        name.starts_with("layer_") && name.ends_with("-model_states.pt") ? &folder.layers
        : name.find("zero_pp_rank_") != std::string::npos && name.ends_with("_optim_states.pt")
            ? &folder.optimizers
        : name.starts_with("mp_rank_") && name.ends_with("_model_states.pt") ? &folder.models
                                                                             : nullptr;
    if (!files) {
      if (name.ends_with(".pt")) foreign.unread.push_back(name);
      continue;
    }
    const int outer =
        number_after(name, files == &folder.layers ? "layer_" : "pp_rank_").value_or(0);
    const auto model = number_after(name, files == &folder.layers ? "-model_" : "mp_rank_");
    if (!model) continue;
    foreign.archives.push_back(std::make_unique<torch::Archive>(entry.path()));
    (*files)[{outer, *model}] = foreign.archives.back().get();
  }
  return folder;
}

/// The weights of the model, from the files of layers or of whole models.
void read_weights(const Folder& folder, const PipelineNames& names, Foreign& foreign) {
  const bool pipeline = !folder.layers.empty();
  for (const auto& [place, archive] : pipeline ? folder.layers : folder.models) {
    const Value* module = pipeline ? &archive->root() : archive->root().find("module");
    if (!module) throw DataError("'{}' has no entry \"module\"", archive->path().string());
    for (auto& [path, tensor] : flatten(*module)) {
      const auto logical = pipeline ? names.of_module(place.first, path) : names.of(path);
      const int rank = place.second;
      if (logical)
        add_shard(foreign.weights, *logical, rank, {archive, tensor, {}, tensor.shape});
      else if (!is_redundant(path) && rank == 0)
        foreign.unread.push_back(path);
    }
  }
}

/// The flat elements of parameter group `group` over all data ranks. `moment` names Adam's moment;
/// "" the fp32 parameters. Empty if a rank has none.
std::vector<float> flat_group(const std::vector<const torch::Archive*>& ranks, std::size_t group,
                              const char* moment) {
  std::vector<float> flat;
  for (const torch::Archive* archive : ranks) {
    const Value* state = archive->root().find("optimizer_state_dict");
    const Value* value = nullptr;
    if (state && *moment == '\0') {
      const Value* groups = state->find("single_partition_of_fp32_groups");
      value = groups && group < groups->items.size() ? groups->items[group] : nullptr;
    } else if (state) {
      const Value* base = state->find("base_optimizer_state");
      const Value* all = base ? base->find("state") : nullptr;
      const Value* one = nullptr;
      if (all)
        for (const auto& [key, entry] : all->fields())
          if (key->is(Value::Kind::integer) && key->integer == static_cast<std::int64_t>(group))
            one = entry;
      if (base && base->is(Value::Kind::list) && group < base->items.size())
        one = base->items[group];
      value = one ? one->find(moment) : nullptr;
    }
    const auto tensor = value ? torch::as_tensor(*value) : std::nullopt;
    if (!tensor) return {};
    const std::vector<float> part = archive->read(*tensor);
    flat.insert(flat.end(), part.begin(), part.end());
  }
  return flat;
}

/// Cuts `flat` into the parameters of `shapes`, in order; what follows them is padding.
bool cut_group(const Value& shapes, const std::vector<float>& flat, const PipelineNames& names,
               int rank, Tensors& tensors) {
  std::size_t at = 0;
  for (const auto& [name, size] : shapes.fields()) {
    std::vector<std::int64_t> shape;
    const Value& extents =
        size->is(Value::Kind::object) && size->items.size() == 1 ? *size->items[0] : *size;
    std::size_t elements = 1;
    for (const Value* extent : extents.items) {
      if (extent->integer < 0 || static_cast<std::size_t>(extent->integer) > flat.size())
        return false;
      shape.push_back(extent->integer);
      elements *= static_cast<std::size_t>(extent->integer);
      if (elements > flat.size()) return false;
    }
    const auto logical = names.of(name->text);
    if (!logical || shape.empty() || elements > flat.size() - at) return false;
    const auto begin = flat.begin() + static_cast<std::ptrdiff_t>(at);
    add_shard(tensors, *logical, rank,
              {.values = {begin, begin + static_cast<std::ptrdiff_t>(elements)}, .shape = shape});
    at += elements;
  }
  return true;
}

/// Reads the ZeRO shards of one model rank. Returns why not, "" if all are read.
std::string read_zero(const Folder& folder, int model, int tensor_rank, const PipelineNames& names,
                      Foreign& foreign) {
  std::vector<const torch::Archive*> ranks;
  for (const auto& [place, archive] : folder.optimizers)
    if (place.second == model) ranks.push_back(archive);
  const auto states = folder.models.find({0, model});
  if (ranks.empty() || states == folder.models.end()) return "it has no ZeRO shards";
  const Value* shapes = states->second->root().find("param_shapes");
  if (!shapes) return "the checkpoint does not name the shapes of its parameters";
  // Before 0.4 there was one dict instead of a list of groups.
  std::vector<const Value*> groups = shapes->items;
  if (groups.empty()) groups.push_back(shapes);
  for (std::size_t group = 0; group < groups.size(); ++group)
    for (const auto& [moment, tensors] :
         {std::pair{"", &foreign.masters}, {"exp_avg", &foreign.m}, {"exp_avg_sq", &foreign.v}}) {
      const std::vector<float> flat = flat_group(ranks, group, moment);
      if (flat.empty() || !cut_group(*groups[group], flat, names, tensor_rank, *tensors))
        return fmt::format("group {} is not in the form of ZeRO stage 1 or 2", group);
    }
  return "";
}

}  // namespace

std::optional<std::string> PipelineNames::of_module(int module, std::string_view tensor) const {
  if (const auto found = layers_.find(module); found != layers_.end()) {
    const auto layer = static_cast<int>(std::distance(layers_.begin(), found));
    const auto key = parse_key(fmt::format("layers.{}.{}", layer, tensor));
    return key ? std::optional(logical_name(*key, 0)) : std::nullopt;
  }
  if (tensor == "weight" || tensor == "bias") return fmt::format("final_norm/{}", tensor);
  const auto key = parse_key(tensor);
  return key ? std::optional(key->name) : std::nullopt;
}

std::optional<std::string> PipelineNames::of(std::string_view parameter) const {
  if (parameter.starts_with("module.")) parameter.remove_prefix(std::string_view("module.").size());
  const auto module = number_after(parameter, "");
  const std::size_t dot = parameter.find('.');
  if (module && parameter[0] >= '0' && parameter[0] <= '9' && dot != std::string_view::npos)
    return of_module(*module, parameter.substr(dot + 1));
  const auto key = parse_key(parameter);
  return key ? std::optional(logical_name(*key, 0)) : std::nullopt;
}

void read_states(const Value& root, Foreign& foreign) {
  foreign.arguments = root.find("args");
  for (const char* name : {"global_steps", "iteration"})
    if (const Value* value = root.find(name); value && value->is(Value::Kind::integer))
      foreign.iteration = value->integer;
  for (const Value* owner : {&root, foreign.arguments})
    if (const Value* value = owner ? owner->find("consumed_train_samples") : nullptr;
        value && value->is(Value::Kind::integer))
      foreign.consumed_samples = value->integer;
  const Value* version = root.find("checkpoint_version");
  const double number = version && version->is_number() ? version->number() : 0;
  foreign.qkv = number < 1   ? QkvOrder::split_head_row
                : number < 2 ? QkvOrder::head_row_split
                             : QkvOrder::head_split_row;
}

Foreign read_deepspeed(const fs::path& path) {
  Foreign foreign{.folder = path};
  const Folder folder = open_files(path, foreign);
  if (folder.models.empty())
    throw DataError("'{}' has no mp_rank_*_model_states.pt", path.string());
  read_states(folder.models.begin()->second->root(), foreign);
  const PipelineNames names(layer_modules(folder.layers));
  read_weights(folder, names, foreign);
  // A pipeline's model ranks are numbered by stage, then tensor rank.
  int tensors = 0;
  for (const auto& [place, archive] : folder.layers.empty() ? folder.models : folder.layers)
    tensors = std::max(tensors, place.second + 1);
  for (const auto& [place, archive] : folder.models) {
    const std::string problem =
        read_zero(folder, place.second, place.second % tensors, names, foreign);
    if (problem.empty()) continue;
    foreign.drop_optimizer(problem);
    break;
  }
  return foreign;
}

// DeepSpeed's universal checkpoints, global_stepN_universal: mp_rank_TT_model_states.pt, and for
// each parameter zero/NAME/{fp32,exp_avg,exp_avg_sq,step}.pt, whole. Source: DeepSpeed,
// checkpoint/ds_to_universal.py.

namespace fs = std::filesystem;
using torch::Value;

namespace {

const torch::Archive& open(const fs::path& path, Foreign& foreign) {
  foreign.archives.push_back(std::make_unique<torch::Archive>(path));
  return *foreign.archives.back();
}

/// The parameters' names, which are those of the folders in `zero`.
std::vector<std::string> parameter_names(const fs::path& zero) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(zero))
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

/// The numbers of the modules of a pipeline that are layers: those with an attention.
std::set<int> layer_modules(const std::vector<std::string>& names) {
  std::set<int> modules;
  for (const std::string& name : names)
    if (std::isdigit(static_cast<unsigned char>(name[0])) &&
        name.find("query_key_value.weight") != std::string::npos)
      modules.insert(std::atoi(name.c_str()));
  return modules;
}

/// The tensor of one file: {"param": tensor, ...}, or the tensor itself. Throws DataError.
Shard read_part(const fs::path& path, Foreign& foreign) {
  const torch::Archive& archive = open(path, foreign);
  const Value* param = archive.root().find("param");
  auto tensor = torch::as_tensor(param ? *param : archive.root());
  if (!tensor) throw DataError("'{}' has no tensor \"param\"", path.string());
  const std::vector<std::int64_t> shape = tensor->shape;
  return {&archive, std::move(*tensor), {}, shape};
}

/// Updates that Adam has applied, from step.pt: a number or a tensor with one element.
std::int64_t read_step(const fs::path& path, Foreign& foreign) {
  const torch::Archive& archive = open(path, foreign);
  if (archive.root().is_number()) return static_cast<std::int64_t>(archive.root().number());
  const auto tensor = torch::as_tensor(archive.root());
  if (!tensor || tensor->elements() != 1)
    throw DataError("'{}' is no number of iterations", path.string());
  return static_cast<std::int64_t>(archive.read(*tensor)[0]);
}

/// The file of the first model rank. Throws DataError if there is none.
fs::path states_of(const fs::path& folder) {
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("mp_rank_00") && name.ends_with("_model_states.pt")) return entry.path();
  }
  throw DataError("'{}' has no mp_rank_00_model_states.pt", folder.string());
}

}  // namespace

Foreign read_universal(const fs::path& folder) {
  Foreign foreign{.folder = folder};
  read_states(open(states_of(folder), foreign).root(), foreign);
  if (foreign.qkv == QkvOrder::split_head_row)
    throw DataError(
        "'{}': the heads of tensor ranks cannot be told apart in a universal checkpoint of version "
        "0; convert the checkpoint that it was made from",
        folder.string());
  const std::vector<std::string> names = parameter_names(folder / "zero");
  const PipelineNames logical(layer_modules(names));
  bool has_moments = !names.empty();
  for (const std::string& name : names) {
    const fs::path path = folder / "zero" / name;
    const auto key = logical.of(name);
    if (!key) {
      if (!is_redundant(name)) foreign.unread.push_back("zero/" + name);
      continue;
    }
    add_shard(foreign.weights, *key, 0, read_part(path / "fp32.pt", foreign));
    if (fs::exists(path / "step.pt"))
      foreign.optimizer_steps =
          std::max(foreign.optimizer_steps, read_step(path / "step.pt", foreign));
    has_moments =
        has_moments && fs::exists(path / "exp_avg.pt") && fs::exists(path / "exp_avg_sq.pt");
    if (!has_moments) continue;
    add_shard(foreign.m, *key, 0, read_part(path / "exp_avg.pt", foreign));
    add_shard(foreign.v, *key, 0, read_part(path / "exp_avg_sq.pt", foreign));
  }
  if (!has_moments) foreign.drop_optimizer("not all parameters have it");
  return foreign;
}

}  // namespace trireme::convert::megatron
