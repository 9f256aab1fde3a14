// The paged KV cache of a rank's layers: planned, allocated once, handed out in blocks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "device/backend.hpp"
#include "generate/block_table.hpp"
#include "model/spec.hpp"

namespace trireme::generate {

/// The memory of a BatchDecoder, all of which it allocates when made.
struct BatchLimits {
  std::int64_t sequences = 8;      ///< with a cache at the same time
  std::int64_t pass_tokens = 512;  ///< new tokens that go through the model at a time, over all
                                   ///< sequences; at least `sequences`
  /// Positions that all sequences together may cache; 0: the whole context of each, or as much as
  /// a GPU's memory holds.
  std::int64_t cache_positions = 0;
};

/// The memory of a rank's KV cache: `blocks` of kPositions positions, each with the keys and values
/// of all of the rank's layers.
struct CachePlan {
  static constexpr std::int64_t kPositions = 64;

  std::int64_t blocks = 0;
  std::size_t block_bytes = 0;

  std::size_t bytes() const { return blocks * block_bytes; }
  /// "96 blocks of 64 positions, 18 MB".
  std::string text() const;
};

/// The layers of a rank, and how their heads are sharded.
struct CachedLayers {
  const model::ModelSpec& spec;
  std::int64_t first = 0;
  std::int64_t count = 1;
  int tensor_ranks = 1;
  DType dtype = DType::f32;
};

/// Memory and block table. All ranks that make the same calls have the same table.
class PagedCache {
 public:
  /// `backend` must outlive this; `world` has the other ranks of the model, or is null. Collective.
  /// Throws as Backend::allocate(), and Error (exit 1) where the cache does not hold the context of
  /// one sequence and `limits` does not say so.
  PagedCache(device::Backend& backend, const CachedLayers& layers, const BatchLimits& limits,
             comm::Communicator* world);

  const CachePlan& plan() const { return plan_; }
  const BlockTable& table() const { return table_; }
  /// The cache of the rank's layer `layer`, from 0, for the kernels.
  const kernels::KeyValueCache& layer(std::size_t layer) const { return layers_[layer]; }

  /// BlockTable::prepare(), with the copies that it asks for.
  void prepare(int sequence, std::int64_t begin, std::int64_t end);
  void share(int from, int to) { table_.share(from, to); }
  void release(int sequence) { table_.release(sequence); }
  /// Brings the table that the kernels read up to date.
  void upload_table();

 private:
  static CachePlan make_plan(const device::Backend& backend, const CachedLayers& layers,
                             const BatchLimits& limits, comm::Communicator* world);

  device::Backend& backend_;
  CachePlan plan_;
  BlockTable table_;
  device::Buffer memory_, table_memory_;
  std::vector<kernels::KeyValueCache> layers_;
  std::uint64_t uploaded_version_ = ~std::uint64_t{0};  ///< of the table
};

}  // namespace trireme::generate
