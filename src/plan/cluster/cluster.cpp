#include "plan/cluster/cluster.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "core/error.hpp"
#include "core/files.hpp"
#include "core/text.hpp"
#include "plan/run_plan.hpp"

namespace trireme::plan {
namespace {

constexpr deck::Range kShare{.low = 0, .high = 2, .low_open = true};

GpuKind read_gpu_kind(const deck::Item& item, const std::filesystem::path& folder,
                      deck::Problems& problems) {
  Section section(item, "", problems);
  GpuKind gpu;
  section.require("name", "the GPU's name");
  section.require("memory", "bytes that a rank may use, such as 80GB");
  section.require("bandwidth", "of its memory, such as 2 TB/s");
  section.require("peak", "TFLOP/s of dense GEMMs by type, such as {bf16: 312, fp16: 312}");
  gpu.name = section.text("name", "");
  gpu.memory = section.memory("memory");
  gpu.bandwidth = section.rate("bandwidth");
  if (const deck::Item* peaks = section.section("peak")) {
    Section peak(*peaks, "peak", problems);
    const auto names = names_of(deck::Compute{});
    for (std::size_t i = 0; i < names.size(); ++i)
      gpu.peak[i] = peak.number(std::string(names[i]), 0, kPositive) * 1e12;
    peak.finish();
  }
  gpu.efficiency = section.number("efficiency", gpu.efficiency, kShare);
  gpu.gemm = section.number("gemm", gpu.gemm, kShare);
  gpu.gemm_half = section.number("gemm_half", gpu.gemm_half, kNotNegative);
  gpu.sms = section.whole("sms", gpu.sms, kCount);
  gpu.attention_forward = section.number("attention_forward", gpu.attention_forward, kPositive);
  gpu.attention_backward = section.number("attention_backward", gpu.attention_backward, kPositive);
  gpu.launch = section.number("launch_us", gpu.launch * 1e6, kLatency) * 1e-6;
  gpu.gathers_under_gemms = section.flag("gathers_under_gemms", gpu.gathers_under_gemms);
  int index = 0;
  for (const deck::Item* profile : section.list("profiles"))
    gpu.profiles.push_back(
        read_profile(*profile, fmt::format("profiles[{}]", index++), folder, problems));
  const std::string measured = section.text("measured", "");
  std::error_code unknown;
  if (!measured.empty() && !std::filesystem::exists(folder / measured, unknown))
    section.refuse("measured", fmt::format("there is no file '{}'", (folder / measured).string()));
  else if (!measured.empty())
    gpu.measured = load_measured_gpu(folder / measured);
  section.finish();
  return gpu;
}

NodeKind read_nodes(const deck::Item& item, const std::string& name,
                    const std::filesystem::path& folder, deck::Problems& problems) {
  Section section(item, name, problems);
  NodeKind nodes;
  section.require("gpu", "a kind of GPU: the name of a file in the folder gpus, or a path");
  section.require("gpus", "GPUs of a node");
  nodes.count = section.whole("count", 1, kCount);
  nodes.gpus = section.whole("gpus", 1, {.low = 1, .high = 1024});
  if (section.has("link")) nodes.link = section.rate("link");
  if (section.has("network")) nodes.network = section.rate("network");
  if (section.has("price")) nodes.price = section.number("price", 0, kNotNegative);
  const std::string gpu = section.text("gpu", "");
  const bool is_path = gpu.find('/') != std::string::npos || gpu.ends_with(".yaml");
  const auto file = is_path ? folder / gpu : folder / "gpus" / (gpu + ".yaml");
  std::error_code unknown;
  if (!gpu.empty() && !std::filesystem::exists(file, unknown))
    section.refuse("gpu", fmt::format("there is no file '{}'", file.string()));
  else if (!gpu.empty())
    nodes.gpu = load_gpu_kind(file);
  section.finish();
  return nodes;
}

Cluster read_cluster(const deck::Item& item, const std::filesystem::path& folder,
                     deck::Problems& problems) {
  Section section(item, "", problems);
  Cluster cluster;
  cluster.name = section.text("name", "");
  cluster.link_latency =
      section.number("link_latency_us", cluster.link_latency * 1e6, kLatency) * 1e-6;
  cluster.network_latency =
      section.number("network_latency_us", cluster.network_latency * 1e6, kLatency) * 1e-6;
  section.require("nodes", "a list of kinds of nodes");
  int index = 0;
  for (const deck::Item* nodes : section.list("nodes"))
    cluster.nodes.push_back(
        read_nodes(*nodes, fmt::format("nodes[{}]", index++), folder, problems));
  if (section.has("nodes") && index == 0) section.refuse("nodes", "give at least one kind");
  section.finish();
  return cluster;
}

}  // namespace

std::int64_t Cluster::gpus() const {
  std::int64_t sum = 0;
  for (const NodeKind& kind : nodes) sum += kind.count * kind.gpus;
  return sum;
}

bool Cluster::has_links() const {
  std::int64_t count = 0;
  for (const NodeKind& kind : nodes) count += kind.count;
  for (const NodeKind& kind : nodes)
    if ((kind.gpus > 1 && !kind.link) || (count > 1 && !kind.network)) return false;
  return true;
}

bool Cluster::has_prices() const {
  for (const NodeKind& kind : nodes)
    if (!kind.price) return false;
  return true;
}

Cluster parse_cluster(const std::string& text, const std::filesystem::path& path) {
  return parse_file(text, path, [&](const deck::Item& item, deck::Problems& problems) {
    return read_cluster(item, path.parent_path(), problems);
  });
}

Cluster load_cluster(const std::filesystem::path& path) {
  for (const char* other : {".md", ".txt", ".sh", ".h5", ".npy"})
    if (path.extension() == other)
      throw DeckError(
          "{}: not a cluster file, which is a YAML file such as inputs/clusters/h200x4.yaml",
          path.string());
  return parse_cluster(read_file(path), path);
}

GpuKind load_gpu_kind(const std::filesystem::path& path) {
  return parse_file(read_file(path), path, [&](const deck::Item& item, deck::Problems& problems) {
    return read_gpu_kind(item, path.parent_path(), problems);
  });
}

std::string cluster_help() {
  return
      R"(A cluster file (inputs/clusters has some):
  name                 for people
  link_latency_us      microseconds of a collective inside a node, at least (20)
  network_latency_us   microseconds of one between nodes, at least (40)
  nodes                a list of kinds of nodes:
    gpu                kind of GPU: NAME for gpus/NAME.yaml next to the file, or a path
    count              nodes (1)
    gpus               GPUs of a node
    link               bytes/s of a GPU to the others of its node: 450 GB/s
    network            bytes/s of a node to other nodes: 400 Gbit/s
    price              dollars of a node for an hour; all kinds or none
Without link or network communication takes no time, and layouts that communicate more are left out.

A kind of GPU (inputs/clusters/gpus):
  name, memory         memory: what a rank may use: 80GB
  peak                 TFLOP/s of dense GEMMs: {fp32, bf16, fp16}
  bandwidth            of its memory: 2 TB/s
  efficiency           factor on the speed of all computation, fitted to measured steps (1)
  gemm, gemm_half      share of the peak of a long GEMM (0.84); inner extent with half of it (145)
  sms                  streaming multiprocessors (100)
  attention_forward    share of the peak times head / (head + 192) (1.4); and attention_backward (1)
  launch_us            microseconds of a kernel, at least (4)
  gathers_under_gemms  true for compute capability 9.0, whose GEMMs begin before all-gathers end (false)
  profiles             a list of measured models; they replace the formulas:
    hidden, heads, sequence, layers, tensor, micro    what was measured (layers: any; tensor, micro: 1)
    forward_ms         {embedding, block, head}: milliseconds of a forward pass
    known_cost         or FASOP's vector of forward seconds: FILE.npy
    backward           time of a backward pass in forward passes (2)
    optimizer_ps       picoseconds of the optimizer for a parameter of the rank (0: not counted)
  measured             a file of `trireme-bench profile`: passes, collectives and copies, which the formulas are scaled to
)";
}

NodeOrder all_nodes(const Cluster& cluster) {
  NodeOrder order;
  for (std::size_t kind = 0; kind < cluster.nodes.size(); ++kind)
    order.insert(order.end(), cluster.nodes[kind].count, static_cast<int>(kind));
  return order;
}

std::int64_t gpus_of(const Cluster& cluster, const NodeOrder& order) {
  std::int64_t sum = 0;
  for (const int kind : order) sum += cluster.nodes[kind].gpus;
  return sum;
}

namespace {

/// Throws BadValue.
double parse_rate(const std::string& text) {
  const std::string_view number = deck::leading_number(text);
  std::string_view unit(text);
  unit.remove_prefix(number.size());
  unit.remove_prefix(std::min(unit.find_first_not_of(' '), unit.size()));
  constexpr std::pair<std::string_view, double> kUnits[] = {
      {"GB/s", 1e9},         {"TB/s", 1e12},         {"MB/s", 1e6},
      {"Gbit/s", 1e9 / 8.0}, {"Tbit/s", 1e12 / 8.0}, {"Mbit/s", 1e6 / 8.0}};
  for (const auto& [name, bytes] : kUnits)
    if (unit == name && !number.empty()) {
      const double rate = deck::parse_real(number) * bytes;
      if (rate > 0 && rate <= kMaxRate) return rate;
    }
  throw deck::BadValue(
      "expected a rate above 0 and up to 1000 TB/s, such as 25 GB/s or 200 Gbit/s");
}

}  // namespace

Section::Section(const deck::Item& item, std::string name, deck::Problems& problems)
    : item_(item), name_(std::move(name)), problems_(problems) {
  if (item.kind == deck::Item::Kind::mapping) {
    std::set<std::string> seen;
    for (const deck::Item& key : item.keys)
      if (!seen.insert(key.text).second)
        problems_.add(key.place, fmt::format("key '{}' is given twice", path(key.text)));
  } else if (item.kind != deck::Item::Kind::refused) {
    problems_.add(item.place, fmt::format("{}: expected a section, found {}",
                                          name_.empty() ? "the file" : name_, deck::found(item)));
  }
}

const deck::Item* Section::find(const std::string& key) {
  known_.insert(key);
  for (std::size_t i = 0; i < item_.keys.size(); ++i)
    if (item_.keys[i].text == key) return &item_.items[i];
  return nullptr;
}

template <typename Read>
auto Section::read(const std::string& key, Read read) -> std::optional<decltype(read(*find(key)))> {
  const deck::Item* item = find(key);
  if (!item || item->kind == deck::Item::Kind::refused) return std::nullopt;
  try {
    return read(*item);
  } catch (const deck::BadValue& error) {
    problems_.add(item->place,
                  fmt::format("{} = {}: {}", path(key), deck::found(*item), error.what()));
  }
  return std::nullopt;
}

bool Section::has(const std::string& key) { return find(key) != nullptr; }

double Section::number(const std::string& key, double fallback, const deck::Range& range) {
  const auto value = read(key, [&](const deck::Item& item) {
    const double number = deck::read_real(item);
    deck::require_in(range, number);
    return number;
  });
  return value.value_or(fallback);
}

std::int64_t Section::whole(const std::string& key, std::int64_t fallback,
                            const deck::Range& range) {
  const auto value = read(key, [&](const deck::Item& item) {
    const std::int64_t number = deck::read_whole(item);
    deck::require_in(range, static_cast<double>(number));
    return number;
  });
  return value.value_or(fallback);
}

std::string Section::text(const std::string& key, const std::string& fallback) {
  return read(key, [](const deck::Item& item) { return deck::read_text(item); }).value_or(fallback);
}

bool Section::flag(const std::string& key, bool fallback) {
  const auto value = read(key, [](const deck::Item& item) {
    const std::string text = deck::read_text(item);
    if (text != "true" && text != "false") throw deck::BadValue("expected true or false");
    return text == "true";
  });
  return value.value_or(fallback);
}

std::size_t Section::choice_of(const std::string& key, const std::vector<std::string_view>& names) {
  const auto value = read(key, [&](const deck::Item& item) {
    const auto found = std::ranges::find(names, deck::read_text(item));
    if (found == names.end())
      throw deck::BadValue(fmt::format("expected {}", fmt::join(names, ", ")));
    return static_cast<std::size_t>(found - names.begin());
  });
  return value.value_or(0);
}

double Section::memory(const std::string& key) {
  const auto value = read(key, [](const deck::Item& item) {
    try {
      return static_cast<double>(parse_memory("", deck::read_text(item)));
    } catch (const UsageError&) {
      throw deck::BadValue("expected a size, such as 80GiB, 80GB or 81920M");
    }
  });
  return value.value_or(0);
}

double Section::rate(const std::string& key) {
  return read(key, [](const deck::Item& item) { return parse_rate(deck::read_text(item)); })
      .value_or(0);
}

std::vector<const deck::Item*> Section::list(const std::string& key) {
  std::vector<const deck::Item*> items;
  const deck::Item* item = find(key);
  if (!item || item->kind == deck::Item::Kind::refused) return items;
  if (item->kind != deck::Item::Kind::list)
    problems_.add(item->place,
                  fmt::format("{}: expected a list, found {}", path(key), deck::found(*item)));
  for (const deck::Item& entry : item->items) items.push_back(&entry);
  return items;
}

const deck::Item* Section::section(const std::string& key) { return find(key); }

void Section::require(const std::string& key, const std::string& what) {
  if (!find(key) && item_.kind == deck::Item::Kind::mapping)
    problems_.add(item_.place, fmt::format("missing key '{}': {}", path(key), what));
}

void Section::refuse(const std::string& key, const std::string& why) {
  const deck::Item* item = find(key);
  problems_.add(item ? item->place : item_.place, fmt::format("{}: {}", path(key), why));
}

void Section::finish() {
  const std::vector<std::string_view> known(known_.begin(), known_.end());
  for (const deck::Item& key : item_.keys) {
    if (known_.contains(key.text)) continue;
    const std::string_view near = nearest(key.text, known);
    problems_.add(key.place,
                  fmt::format("unknown key '{}'{}", path(key.text),
                              near.empty() ? "" : fmt::format(" — did you mean '{}'?", near)));
  }
}

}  // namespace trireme::plan
