// Megatron-LM's checkpoints: mp_rank_TT/model_optim_rng.pt and mp_rank_TT_PPP/..., of every version
// since 2019 and of Megatron-Core's format "torch".
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "convert/megatron/foreign.hpp"
#include "core/error.hpp"
#include "core/tensor.hpp"

namespace trireme::convert::megatron {

namespace fs = std::filesystem;
using torch::Value;

namespace {

/// The state of one tensor and pipeline rank.
struct RankFile {
  int tensor = 0, pipeline = 0;
  const torch::Archive* archive = nullptr;
};

/// A tensor of a rank in the order of its state dict.
struct Named {
  std::string logical;
  torch::Tensor tensor;
};

std::optional<int> number_in(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool complete = error == std::errc() && end == text.data() + text.size() && !text.empty();
  return complete ? std::optional(value) : std::nullopt;
}

std::optional<std::int64_t> whole_of(const Value* value) {
  return value && value->is(Value::Kind::integer) ? std::optional(value->integer) : std::nullopt;
}

/// Opens the files of all ranks, by pipeline and then tensor rank.
std::vector<RankFile> open_ranks(const fs::path& folder, Foreign& foreign) {
  std::vector<RankFile> ranks;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    constexpr std::string_view kPrefix = "mp_rank_";
    if (!name.starts_with(kPrefix) || !entry.is_directory()) continue;
    const std::string_view numbers = std::string_view(name).substr(kPrefix.size());
    const std::size_t bar = std::min(numbers.find('_'), numbers.size());
    const auto tensor = number_in(numbers.substr(0, bar));
    const auto pipeline = bar == numbers.size() ? 0 : number_in(numbers.substr(bar + 1));
    fs::path file = entry.path() / "model_optim_rng.pt";
    if (!fs::exists(file)) file = entry.path() / "model_rng.pt";
    if (!tensor || !pipeline || !fs::exists(file)) continue;
    foreign.archives.push_back(std::make_unique<torch::Archive>(file));
    ranks.push_back({*tensor, *pipeline, foreign.archives.back().get()});
    if (fs::exists(entry.path() / "distrib_optim.pt"))
      foreign.unread.push_back(name + "/distrib_optim.pt (the distributed optimizer's state)");
  }
  if (ranks.empty())
    throw DataError("'{}' has no mp_rank_* folder with a model_optim_rng.pt", folder.string());
  std::sort(ranks.begin(), ranks.end(), [](const RankFile& a, const RankFile& b) {
    return std::pair(a.pipeline, a.tensor) < std::pair(b.pipeline, b.tensor);
  });
  const int tensors =
      std::max_element(ranks.begin(), ranks.end(),
                       [](const auto& a, const auto& b) { return a.tensor < b.tensor; })
          ->tensor +
      1;
  for (std::size_t i = 0; i < ranks.size(); ++i)
    if (ranks[i].tensor != static_cast<int>(i) % tensors ||
        ranks[i].pipeline != static_cast<int>(i) / tensors)
      throw DataError(
          "'{}' lacks the file of a rank: the next after {} has tensor rank {}, "
          "pipeline rank {}",
          folder.string(), i, ranks[i].tensor, ranks[i].pipeline);
  return ranks;
}

/// Throws DataError unless the files of all ranks are of one checkpoint.
void check_same(const std::vector<RankFile>& ranks) {
  for (const char* name : {"iteration", "total_iters", "checkpoint_version"}) {
    const auto text_of = [&](const RankFile& rank) {
      const Value* value = rank.archive->root().find(name);
      return value && value->is_number() ? fmt::format("{}", value->number()) : "none";
    };
    for (const RankFile& rank : ranks)
      if (text_of(rank) != text_of(ranks[0]))
        throw DataError("'{}' has {} {}, but '{}' has {}: the files are of different checkpoints",
                        rank.archive->path().string(), name, text_of(rank),
                        ranks[0].archive->path().string(), text_of(ranks[0]));
  }
}

/// The model chunks of a rank: "model", or "model0", "model1" of an interleaved schedule.
std::vector<const Value*> chunks_of(const RankFile& rank) {
  const Value& root = rank.archive->root();
  if (const Value* model = root.find("model")) return {model};
  std::vector<const Value*> chunks;
  while (const Value* chunk = root.find(fmt::format("model{}", chunks.size())))
    chunks.push_back(chunk);
  if (chunks.empty()) throw DataError("'{}' has no entry \"model\"", rank.archive->path().string());
  return chunks;
}

/// Reads the tensors of all model chunks; returns those of each rank in their order.
std::vector<std::vector<Named>> read_models(const std::vector<RankFile>& ranks, Foreign& foreign) {
  std::vector<std::vector<Named>> named(ranks.size());
  std::vector<std::vector<const Value*>> chunks;
  for (const RankFile& rank : ranks) chunks.push_back(chunks_of(rank));
  int first_layer = 0;
  // Layers are numbered by chunk, then stage.
  for (std::size_t chunk = 0; chunk < chunks[0].size(); ++chunk) {
    int layers = 0;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      const RankFile& rank = ranks[i];
      if (rank.tensor == 0) first_layer += std::exchange(layers, 0);
      if (chunks[i].size() != chunks[0].size())
        throw DataError("'{}' has {} model chunks, but the first rank has {}",
                        rank.archive->path().string(), chunks[i].size(), chunks[0].size());
      for (auto& [path, tensor] : flatten(*chunks[i][chunk])) {
        const auto key = parse_key(path);
        if (!key) {
          if (!is_redundant(path) && rank.tensor == 0) foreign.unread.push_back(path);
          continue;
        }
        layers = std::max(layers, key->layer + 1);
        std::string logical = logical_name(*key, first_layer);
        add_shard(foreign.weights, logical, rank.tensor, {rank.archive, tensor, {}, tensor.shape});
        named[i].push_back({std::move(logical), std::move(tensor)});
      }
    }
    first_layer += layers;
  }
  return named;
}

/// The optimizer's own state dict, {"state", "param_groups"}: directly, or within that of a 16-bit
/// optimizer of either age.
const Value* adam_of(const Value& optimizer) {
  if (optimizer.find("param_groups")) return &optimizer;
  for (const char* name : {"optimizer", "optimizer_state_dict"})
    if (const Value* inner = optimizer.find(name); inner && inner->find("param_groups"))
      return inner;
  return nullptr;
}

/// The entry of `dict` with the whole-number key `key`.
const Value* entry_of(const Value& dict, std::int64_t key) {
  for (const auto& [name, value] : dict.fields())
    if (name->is(Value::Kind::integer) && name->integer == key) return value;
  return nullptr;
}

/// The parameters of one optimizer, by the groups of its state dict: Megatron-LM has one group of
/// matrices, which decay, and one of vectors, each in the order of the modules.
std::optional<std::vector<Named>> match_groups(const Value& groups,
                                               const std::vector<Named>& named) {
  std::vector<const Named*> matrices, vectors;
  for (const Named& one : named) (one.tensor.shape.size() > 1 ? matrices : vectors).push_back(&one);
  std::vector<Named> matched;
  for (const Value* group : groups.items) {
    const Value* parameters = group->find("params");
    if (!parameters) return std::nullopt;
    const auto* source = parameters->items.size() == matrices.size() && !matrices.empty()
                             ? &matrices
                         : parameters->items.size() == vectors.size() ? &vectors
                                                                      : nullptr;
    // With equal numbers the matrices come first, as the word embedding does.
    if (!source || source->empty()) return std::nullopt;
    for (const Named* one : *source) matched.push_back(*one);
    (source == &matrices ? matrices : vectors).clear();
  }
  return matrices.empty() && vectors.empty() ? std::optional(matched) : std::nullopt;
}

/// Whether the 16-bit `weight` is `master` rounded.
bool is_rounded(const std::vector<float>& master, const std::vector<float>& weight, DType dtype) {
  if (master.size() != weight.size()) return false;
  if (dtype == DType::f32) return master == weight;
  std::vector<std::uint16_t> bits(master.size());
  convert_from_float(master.data(), master.size(), dtype, bits.data());
  std::vector<float> rounded(master.size());
  convert_to_float(bits.data(), bits.size(), dtype, rounded.data());
  return rounded == weight;
}

/// The fp32 copies of a 16-bit optimizer in the order of its groups.
std::vector<torch::Tensor> masters_of(const Value& optimizer) {
  std::vector<torch::Tensor> masters;
  for (const char* name : {"fp32_from_fp16_params", "fp32_from_fp16"})
    if (const Value* groups = optimizer.find(name)) {
      for (const Value* group : groups->items)
        for (const Value* value : group->items)
          if (auto tensor = torch::as_tensor(*value)) masters.push_back(std::move(*tensor));
      break;
    }
  return masters;
}

/// Reads masters and moments of one rank. Returns why not, "" if all are read.
std::string read_optimizer(const RankFile& rank, const std::vector<Named>& named,
                           Foreign& foreign) {
  const Value* optimizer = rank.archive->root().find("optimizer");
  if (!optimizer) return "there is none";
  const Value* adam = adam_of(*optimizer);
  const Value* state = adam ? adam->find("state") : nullptr;
  if (!state) return "its form is unknown";
  const auto order = match_groups(*adam->find("param_groups"), named);
  if (!order) return "its parameter groups are not matrices and vectors";
  const std::vector<torch::Tensor> masters = masters_of(*optimizer);
  if (!masters.empty() && masters.size() != order->size())
    return "its fp32 copies are not those of the model";
  std::int64_t index = 0;
  for (const Value* group : adam->find("param_groups")->items) {
    for (const Value* parameter : group->find("params")->items) {
      const Named& one = (*order)[static_cast<std::size_t>(index)];
      const Value* moments =
          parameter->is(Value::Kind::integer) ? entry_of(*state, parameter->integer) : nullptr;
      const Value* m = moments ? moments->find("exp_avg") : nullptr;
      const Value* v = moments ? moments->find("exp_avg_sq") : nullptr;
      const auto first = m ? torch::as_tensor(*m) : std::nullopt;
      const auto second = v ? torch::as_tensor(*v) : std::nullopt;
      if (!first || !second || first->shape != one.tensor.shape ||
          second->shape != one.tensor.shape)
        return fmt::format("it has no moments of '{}' in its shape", one.logical);
      add_shard(foreign.m, one.logical, rank.tensor, {rank.archive, *first, {}, first->shape});
      add_shard(foreign.v, one.logical, rank.tensor, {rank.archive, *second, {}, second->shape});
      if (const Value* step = moments->find("step"); step && step->is_number())
        foreign.optimizer_steps =
            std::max(foreign.optimizer_steps, static_cast<std::int64_t>(step->number()));
      if (!masters.empty()) {
        const torch::Tensor& master = masters[static_cast<std::size_t>(index)];
        if (!one.tensor.dtype || !is_rounded(rank.archive->read(master),
                                             rank.archive->read(one.tensor), *one.tensor.dtype))
          return fmt::format("its fp32 copy of '{}' is not the model's, rounded", one.logical);
        add_shard(foreign.masters, one.logical, rank.tensor,
                  {rank.archive, master, {}, master.shape});
      }
      ++index;
    }
  }
  return "";
}

std::optional<double> loss_scale_of(const Value& optimizer, const torch::Archive& archive) {
  const Value* scaler = optimizer.find("grad_scaler");
  const Value* scale = scaler ? scaler->find("scale") : nullptr;
  if (const auto tensor = scale ? torch::as_tensor(*scale) : std::nullopt;
      tensor && tensor->elements() == 1)
    return archive.read(*tensor)[0];
  // Before 2.0 the scaler itself was saved.
  scaler = optimizer.find("loss_scaler");
  scale = scaler ? scaler->find("cur_scale") : nullptr;
  return scale && scale->is_number() ? std::optional(scale->number()) : std::nullopt;
}

}  // namespace

void read_common(const torch::Archive& archive, Foreign& foreign) {
  const Value& root = archive.root();
  foreign.arguments = root.find("args");
  for (const char* name : {"total_iters", "iteration"})
    foreign.iteration = whole_of(root.find(name)).value_or(foreign.iteration);
  const Value* version = root.find("checkpoint_version");
  const double number = version && version->is_number() ? version->number() : 0;
  foreign.qkv = number < 1   ? QkvOrder::split_head_row
                : number < 2 ? QkvOrder::head_row_split
                             : QkvOrder::head_split_row;
  if (foreign.arguments) {
    foreign.consumed_samples = whole_of(foreign.arguments->find("consumed_train_samples"));
    const Value* less_one = foreign.arguments->find("apply_layernorm_1p");
    foreign.norms_less_one = less_one && less_one->is(Value::Kind::boolean) && less_one->integer;
  }
  for (const char* name : {"opt_param_scheduler", "lr_scheduler"})
    if (const Value* scheduler = root.find(name)) {
      foreign.schedule_samples = whole_of(scheduler->find("num_steps"));
      foreign.schedule_iterations = whole_of(scheduler->find("num_iters"));
    }
  const Value* optimizer = root.find("optimizer");
  if (!optimizer) return;
  foreign.loss_scale = loss_scale_of(*optimizer, archive);
  if (const Value* adam = adam_of(*optimizer))
    for (const Value* group : adam->find("param_groups")->items)
      if (const Value* step = group->find("step"); step && step->is_number())
        foreign.optimizer_steps =
            std::max(foreign.optimizer_steps, static_cast<std::int64_t>(step->number()));
}

Foreign read_megatron(const fs::path& folder) {
  Foreign foreign{.folder = folder};
  const std::vector<RankFile> ranks = open_ranks(folder, foreign);
  check_same(ranks);
  read_common(*ranks[0].archive, foreign);
  const auto named = read_models(ranks, foreign);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const std::string problem = read_optimizer(ranks[i], named[i], foreign);
    if (problem.empty()) continue;
    foreign.drop_optimizer(problem);
    break;
  }
  return foreign;
}

}  // namespace trireme::convert::megatron
