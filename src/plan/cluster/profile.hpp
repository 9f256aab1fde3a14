// Measured times of a kind of GPU: what `trireme-bench profile` writes, and what others published.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "deck/choices.hpp"
#include "deck/document.hpp"

namespace trireme::plan {

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

}  // namespace trireme::plan
