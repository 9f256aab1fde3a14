// The machines of the layout search: profiles of kinds of GPUs, and clusters of nodes that have
// them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "core/text.hpp"
#include "deck/choices.hpp"
#include "deck/value.hpp"

namespace trireme::plan {

// Measured times of a kind of GPU: what `trireme-bench profile` writes, and what others published.

/// Seconds of the three parts of a model for one micro-batch, either way.
struct UnitSeconds {
  double embedding = 0;
  double block = 0;
  double head = 0;
};

/// Passes of our own kernels, which other shapes are scaled from.
struct MeasuredPasses {
  deck::Family family{};
  deck::Compute compute{};
  bool dropout = false;
  bool sequence_parallel = false;
  std::int64_t ffn = 0;
  std::int64_t vocab = 0;
  UnitSeconds backward;         ///< without recomputation
  UnitSeconds weight_gradient;  ///< the part of it that a zero-bubble schedule moves
  double recompute_full = 0;    ///< seconds that recomputation adds to the backward pass of a block
  double recompute_selective = 0;
  /// Seconds that the collectives of the tensor ranks add inside a node; not measured on one rank.
  std::optional<UnitSeconds> tensor_forward;
  std::optional<UnitSeconds> tensor_backward;
};

/// Measured passes of one model at one tensor size.
struct Profile {
  std::int64_t layers = 0;  ///< 0: of any number of layers
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t sequence = 0;
  std::int64_t tensor = 1;
  std::int64_t micro = 1;
  UnitSeconds forward;   ///< with tensor collectives unless `own` is set
  double backward = 2;   ///< time of a backward pass in forward passes
  double optimizer = 0;  ///< seconds for a parameter of the rank
  std::optional<MeasuredPasses> own;

  /// Whether both are of the same passes.
  bool same_passes(const Profile& other) const;
};

/// A collective inside a node.
struct MeasuredCollective {
  std::string operation;   ///< all-reduce, reduce-scatter, all-gather or send
  std::int64_t ranks = 2;  ///< of the group
  double bytes = 0;        ///< of the whole tensor
  double seconds = 0;
};

/// What a profile file holds.
struct MeasuredGpu {
  std::string name;               ///< as the driver reports it; "host" without a GPU
  double launch = 0;              ///< seconds of a small kernel
  double copy = 0;                ///< bytes/s of a copy inside the GPU's memory, read and written
  double to_host = 0;             ///< bytes/s of a copy to page-locked host memory
  double from_host = 0;           ///< and back
  double optimizer = 0;           ///< seconds for a parameter: gradient norm and update
  double optimizer_constant = 0;  ///< seconds of a step's optimizer without parameters
  std::vector<MeasuredCollective> collectives;
  std::vector<Profile> profiles;

  /// Takes over what `newer` has measured; keeps what only this has.
  void update(const MeasuredGpu& newer);
  /// Seconds of `operation` on `bytes` over `ranks` of a node, by linear interpolation between
  /// measured sizes; a group of another size by the bytes that each link carries. Nothing where
  /// the operation is not measured.
  std::optional<double> collective(const std::string& operation, double ranks, double bytes) const;
};

/// Reads a profile file. Throws IoError when it cannot be read, DeckError for all that is wrong.
MeasuredGpu load_measured_gpu(const std::filesystem::path& path);
/// As load_measured_gpu(), from text; errors name `path`.
MeasuredGpu parse_measured_gpu(const std::string& text, const std::filesystem::path& path);
/// The file's text, after `comment` lines.
std::string to_yaml(const MeasuredGpu& gpu, const std::string& comment);

/// One entry of `profiles`. Paths in it are relative to `folder`.
Profile read_profile(const deck::Item& item, const std::string& name,
                     const std::filesystem::path& folder, deck::Problems& problems);

/// FASOP's `known_cost`: a .npy vector of float64, the forward seconds of the embedding, of each
/// layer and of the head for micro-batches of 1. Throws IoError or DataError.
Profile read_known_cost(const std::filesystem::path& path);

// A cluster for the layout search: its kinds of GPU, what they compute in which time, and the nodes
// that have them. Read from YAML; errors are reported together, each with its place, as a deck's.

/// What is known of a kind of GPU.
struct GpuKind {
  std::string name;
  double memory = 0;           ///< bytes that a rank may use
  double peak[3] = {0, 0, 0};  ///< FLOP/s by deck::Compute; 0: the GPU does not have the type
  double bandwidth = 0;        ///< of memory, bytes/s
  double efficiency = 1;       ///< factor on the speed of all computation, fitted to measured steps
  double gemm = 0.84;          ///< share of the peak of a GEMM whose inner extent is long
  double gemm_half = 145;      ///< inner extent at which a GEMM has half of that
  std::int64_t sms = 100;      ///< which the tiles of a GEMM are spread over
  double attention_forward = 1.4;   ///< share of the peak times head / (head + 192): FlashAttention
  double attention_backward = 1.0;  ///< the same, backward
  double launch = 4e-6;             ///< seconds that each kernel takes at least
  /// Trireme's GEMMs of linears that begin with an all-gather take its parts as they come.
  bool gathers_under_gemms = false;
  std::vector<Profile> profiles;  ///< published: of their models alone
  std::optional<MeasuredGpu> measured;

  double peak_of(deck::Compute compute) const { return peak[static_cast<int>(compute)]; }
};

/// Equal nodes.
struct NodeKind {
  GpuKind gpu;
  std::int64_t count = 1;
  std::int64_t gpus = 1;          ///< of a node
  std::optional<double> link;     ///< bytes/s of a GPU to the others of its node, each way
  std::optional<double> network;  ///< bytes/s of a node to the others, each way
  std::optional<double> price;    ///< dollars of a node for an hour
};

struct Cluster {
  std::string name;
  double link_latency = 20e-6;     ///< seconds of a collective inside a node, at least
  double network_latency = 40e-6;  ///< seconds of one between nodes, at least
  std::vector<NodeKind> nodes;

  std::int64_t gpus() const;
  /// Whether the bandwidth of all that nodes communicate through is known. Where it is not,
  /// communication takes no time.
  bool has_links() const;
  bool has_prices() const;
};

/// Kinds of nodes in the order of their ranks: indices of Cluster::nodes, one for each node.
using NodeOrder = std::vector<int>;

/// All nodes of a cluster, kind after kind.
NodeOrder all_nodes(const Cluster& cluster);
/// Their GPUs.
std::int64_t gpus_of(const Cluster& cluster, const NodeOrder& order);

/// Reads the cluster in `path`, and its kinds of GPU, which are files of the folder `gpus` next to
/// it or paths. Throws IoError when a file cannot be read, DeckError for all that is wrong in one.
Cluster load_cluster(const std::filesystem::path& path);

/// As load_cluster(), from text; errors name `path`, and `gpus` is searched next to it.
Cluster parse_cluster(const std::string& text, const std::filesystem::path& path);

/// Reads one kind of GPU. Throws as load_cluster().
GpuKind load_gpu_kind(const std::filesystem::path& path);

/// A line for each key of the two files.
std::string cluster_help();

// Sections of a cluster file: each key is asked for once; what is left over is unknown.

/// Limits that no machine comes near to: beyond them a value has the wrong unit.
inline constexpr double kMaxNumber = 1e9, kMaxMicroseconds = 1e6, kMaxRate = 1e15;
inline constexpr deck::Range kPositive{.low = 0, .high = kMaxNumber, .low_open = true};
inline constexpr deck::Range kNotNegative{.low = 0, .high = kMaxNumber};
inline constexpr deck::Range kLatency{.low = 0, .high = kMaxMicroseconds};
inline constexpr deck::Range kCount{.low = 1, .high = 1 << 20};

/// A mapping of the file. Problems are collected; what could not be read has the fallback.
class Section {
 public:
  /// `name` is its path, "" for the file.
  Section(const deck::Item& item, std::string name, deck::Problems& problems);

  bool has(const std::string& key);
  /// The value of `key`, which must lie in `range`; the fallback where it is not given.
  double number(const std::string& key, double fallback, const deck::Range& range);
  std::int64_t whole(const std::string& key, std::int64_t fallback, const deck::Range& range);
  std::string text(const std::string& key, const std::string& fallback);
  bool flag(const std::string& key, bool fallback);
  /// One of an enum's names; the first where it is not given.
  template <typename Enum>
  Enum choice(const std::string& key) {
    const auto names = names_of(Enum{});
    return static_cast<Enum>(choice_of(key, {names.begin(), names.end()}));
  }
  /// "80GB", "40 GiB": bytes.
  double memory(const std::string& key);
  /// "25 GB/s", "200 Gbit/s": bytes per second.
  double rate(const std::string& key);
  /// The items of a list, none where it is not given.
  std::vector<const deck::Item*> list(const std::string& key);
  /// A section of this one, or nullptr.
  const deck::Item* section(const std::string& key);

  /// Adds a problem unless `key` is given.
  void require(const std::string& key, const std::string& what);
  /// Adds a problem at the value of `key`.
  void refuse(const std::string& key, const std::string& why);
  /// Adds a problem for each key that was never asked for, with the nearest of those that were.
  void finish();

 private:
  const deck::Item* find(const std::string& key);
  std::size_t choice_of(const std::string& key, const std::vector<std::string_view>& names);
  std::string path(const std::string& key) const { return name_.empty() ? key : name_ + "." + key; }
  template <typename Read>
  auto read(const std::string& key, Read read) -> std::optional<decltype(read(*find(key)))>;

  const deck::Item& item_;
  std::string name_;
  deck::Problems& problems_;
  std::set<std::string> known_;
};

/// Parses `text` with `read`; the errors of the file, with a closing line of this subject.
template <typename Read>
auto parse_file(const std::string& text, const std::filesystem::path& path, Read read) {
  deck::Problems problems(path.string(), {});
  const deck::Item item = deck::read_yaml(text, 0, problems);
  try {
    problems.raise_if_any();
    auto result = read(item, problems);
    problems.raise_if_any();
    return result;
  } catch (const deck::InvalidDeck& invalid) {
    std::string lines;
    for (const auto& line : invalid.lines()) lines += line.text + "\n";
    throw DeckError("{}{}; nothing was planned. 'trireme-plan --help cluster' lists every key.",
                    lines, counted(static_cast<std::int64_t>(invalid.lines().size()), "error"));
  }
}

}  // namespace trireme::plan
