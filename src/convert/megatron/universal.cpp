// DeepSpeed's universal checkpoints, global_stepN_universal: mp_rank_TT_model_states.pt, and for
// each parameter zero/NAME/{fp32,exp_avg,exp_avg_sq,step}.pt, whole. Source: DeepSpeed,
// checkpoint/ds_to_universal.py.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "convert/megatron/deepspeed.hpp"
#include "core/error.hpp"

namespace trireme::convert::megatron {

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
  if (!has_moments) {
    foreign.unread.emplace_back("the optimizer's state: not all parameters have it");
    foreign.m.clear();
    foreign.v.clear();
  }
  return foreign;
}

}  // namespace trireme::convert::megatron
