// The paged KV cache of a rank's layers: planned, allocated once, handed out in blocks. Which
// blocks each sequence has is arithmetic alone (BlockTable).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.hpp"
#include "device/backend.hpp"
#include "model/spec.hpp"

namespace trireme::generate {

/// Blocks of `positions` consecutive positions, handed out to sequences one by one. Sequences that
/// begin alike may share blocks (copy on write). Source: Kwon et al., "PagedAttention" (2023),
/// section 4. All ranks that do the same calls have the same table.
class BlockTable {
 public:
  BlockTable(std::int64_t sequences, std::int64_t capacity, std::int64_t blocks,
             std::int64_t positions);

  /// Blocks that `length` positions need.
  std::int64_t blocks_for(std::int64_t length) const {
    return (length + positions_ - 1) / positions_;
  }
  std::int64_t blocks() const { return static_cast<std::int64_t>(owners_.size()); }
  std::int64_t free_blocks() const { return static_cast<std::int64_t>(free_.size()); }
  std::int64_t positions() const { return positions_; }
  std::int64_t columns() const { return columns_; }

  /// Makes positions begin .. end - 1 of a sequence writable, whose earlier ones it has; later ones
  /// are dropped. Returns the blocks to copy, from and to, since another sequence shares them.
  /// Throws DataError where no block is free.
  std::vector<std::pair<std::int32_t, std::int32_t>> prepare(int sequence, std::int64_t begin,
                                                             std::int64_t end);
  /// Replaces the blocks of `to` by those of `from`, shared.
  void share(int from, int to);
  void release(int sequence);

  /// [sequences, columns]: the blocks; what a sequence does not have is block 0.
  std::span<const std::int32_t> table() const { return table_; }
  /// Counts the changes of the table.
  std::uint64_t version() const { return version_; }

 private:
  std::int32_t& entry(int sequence, std::int64_t column) {
    return table_[sequence * columns_ + column];
  }
  void truncate(int sequence, std::int64_t count);
  std::int32_t take();

  std::int64_t positions_, columns_;
  std::vector<std::int32_t> table_;
  std::vector<std::int64_t> counts_;  ///< blocks of each sequence
  std::vector<int> owners_;           ///< sequences that share each block
  std::vector<std::int32_t> free_;    ///< the next one last
  std::uint64_t version_ = 0;
};

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
  /// Of GPUs' kernels for passes over one token, which are allocated when these are captured: one
  /// for the largest logits, one for all.
  std::size_t pass_bytes = 0;

  std::size_t bytes() const { return blocks * block_bytes; }
  /// Blocks that fit into `free` bytes of a GPU with what passes and libraries take.
  double blocks_in(std::size_t free) const;
  /// "96 blocks of 64 positions, 18 MB", with ", and 17 MB for passes over one token" on GPUs.
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

/// CachePlan::pass_bytes of a GPU: at most, as only Hopper has the kernel. 0 in fp32 and with
/// several tensor ranks, which run the operations one by one.
std::size_t planned_pass_bytes(const CachedLayers& layers);

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
