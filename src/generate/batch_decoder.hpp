// A GPT in inference on one rank, or on tensor and pipeline ranks: several sequences with a
// paged KV cache, planned, allocated once and handed out in blocks, whose new tokens go through
// the model together.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.hpp"
#include "comm/mpi/mpi_communicator.hpp"
#include "device/backend.hpp"
#include "generate/decoder.hpp"
#include "model/layers/block.hpp"
#include "model/layers/embedding.hpp"
#include "model/layers/head.hpp"
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

/// New tokens of one sequence.
struct Chunk {
  int slot = 0;           ///< the sequence's cache, from 0 to sequences - 1
  std::int64_t past = 0;  ///< tokens of the sequence before these, whose keys and values are cached
  std::vector<std::int32_t> ids;
  bool wants_logits = true;  ///< of the token that follows the last one
};

/// The largest logits, largest first.
struct TopTokens {
  std::vector<std::int32_t> ids;
  std::vector<double> logits;
};

/// The model without dropout. With several ranks the first one calls run() and copy(), and all
/// others follow() it; each has the weights of its place in the layout.
///
/// A pass of one token for each sequence, the usual one, is captured once for each size and then
/// replayed, where the backend gains by it.
class BatchDecoder {
 public:
  /// `parameters` holds the weights of this rank and must outlive this, as must `backend` and
  /// `groups`: those of a layout with one data rank, or null on one rank. Throws as
  /// Backend::allocate(), and Error (exit 1) where the cache does not hold one sequence.
  BatchDecoder(device::Backend& backend, const model::ParameterStore& parameters,
               const model::ModelSpec& spec, const BatchLimits& limits,
               comm::Groups* groups = nullptr);
  BatchDecoder(const BatchDecoder&) = delete;
  BatchDecoder& operator=(const BatchDecoder&) = delete;

  /// The maximum number of tokens of a sequence: those of the model's context, or fewer where the
  /// cache holds fewer.
  std::int64_t capacity() const { return capacity_; }
  /// Which tokens capacity() counts, as a part of a message: "the KV cache holds 64".
  std::string capacity_text() const;
  std::int64_t vocab() const { return spec_.vocab; }
  const BatchLimits& limits() const { return limits_; }
  const CachePlan& cache_plan() const { return cache_->plan(); }
  /// Which blocks of the cache are in use.
  const BlockTable& blocks() const { return cache_->table(); }

  /// Runs the chunks, of different slots. Returns the logits [vocab] of each chunk that wants them,
  /// in turn, on the first rank; valid until the next call. Throws DataError where the cache is
  /// full.
  std::span<const std::vector<double>> run(const std::vector<Chunk>& chunks);

  /// The same, for the `count` largest of the first `columns` logits alone: 1 to
  /// kernels::kMaxTopLogits.
  std::span<const TopTokens> run_top(const std::vector<Chunk>& chunks, std::int64_t count,
                                     std::int64_t columns);

  /// Copies caches: pairs of slots, from and to; no slot that
  /// is copied to is also copied from.
  void copy(const std::vector<std::pair<int, int>>& slots);
  /// Gives the blocks of a slot back.
  void release(int slot);

  /// Tells the other ranks that this one is still there, so that they do not time out.
  void keep_alive();
  /// Ends follow() on the other ranks. The last call.
  void stop();
  /// Takes part in what the first rank does, until it stops.
  void follow();

 private:
  enum class Command : std::int64_t { run, copy, release, keep_alive, stop };
  struct Stage {
    std::optional<model::Embedding> embedding;
    std::vector<model::TransformerBlock> blocks;
    std::optional<model::Head> head;
  };
  struct Scratch {
    Tensor stream;  ///< [T, 1, h]
    model::Embedding::Activations embedding;
    std::vector<model::BlockActivations> blocks;
    model::LayerWorkspace workspace;
  };
  struct HeadScratch {
    Tensor last;  ///< [B, 1, h]: the stream of the tokens whose logits are wanted
    model::Head::Activations head;
    Tensor gathered;  ///< [t, B, V / t]
    Tensor top;       ///< room for the largest logits, then their ids
  };
  /// Which of a token's logits are wanted: all, with count 0.
  struct Wanted {
    std::int64_t count = 0, columns = 0;
    auto operator<=>(const Wanted&) const = default;
  };
  /// What a pass runs.
  struct Pass {
    std::int64_t rows = 0;                   ///< tokens, and padding
    std::vector<model::CachedChunk> chunks;  ///< none: each row is a token of another sequence
    std::vector<std::int64_t> wanted_rows;   ///< whose logits are wanted; with chunks alone
    bool has_starts = false;                 ///< whether CachedTokens::fresh_starts are needed
    /// Rows of logits that are computed, padding included.
    std::int64_t logits_rows() const { return chunks.empty() ? rows : std::ssize(wanted_rows); }
  };
  /// A pass over one token of each sequence.
  struct Step {
    bool ran = false;
    std::unique_ptr<device::CapturedWork> work;
  };

  bool leads() const { return !groups_ || groups_->world->rank() == 0; }
  /// Whether passes of one token for each of several sequences have rows without a sequence.
  bool pads() const;
  /// Rows of the largest such pass.
  std::int64_t max_rows() const;
  bool alone() const { return !groups_ || groups_->world->size() == 1; }
  comm::Communicator& tensor() { return groups_ ? *groups_->tensor : serial_; }
  model::LayerSizes sizes(std::int64_t tokens) const;
  Scratch take_scratch(model::Arena& arena, const model::LayerSizes& sizes) const;
  HeadScratch take_head(model::Arena& arena, const model::LayerSizes& sizes) const;
  void allocate();

  /// Sends a command and its numbers to the other ranks; receives one there.
  void send(Command command, const std::vector<std::int64_t>& numbers);
  Command receive(std::vector<std::int64_t>& numbers);
  void check_and_run(const std::vector<Chunk>& chunks, const Wanted& wanted);
  void run_pass(const std::vector<Chunk>& chunks, const Wanted& wanted);
  Pass upload_inputs(const std::vector<Chunk>& chunks);
  /// Enqueues a pass: nothing but sizes and places in memory changes with the arguments.
  void enqueue(const Pass& pass, const Wanted& wanted);
  void enqueue_head(const Tensor& stream, const Pass& pass, const Wanted& wanted);
  /// Reads the logits of `count` tokens back.
  void read_logits(std::int64_t count, const Pass& pass, const Wanted& wanted);
  /// Moves the logits from the last stage to the first rank.
  void move_logits(std::size_t count);

  device::Backend& backend_;
  comm::SerialCommunicator serial_;
  comm::Groups* groups_;
  model::ModelSpec spec_;
  BatchLimits limits_;
  std::int64_t capacity_;
  DType dtype_;
  Stage stage_;
  std::optional<PagedCache> cache_;
  device::Buffer scratch_memory_, head_memory_, input_memory_, read_back_;
  std::optional<PositionTables> tables_;
  std::int32_t* inputs_ = nullptr;  ///< of T rows: ids, positions, lines of the table, starts
  std::map<std::pair<std::int64_t, Wanted>, Step> steps_;  ///< by rows
  std::vector<std::vector<double>> logits_;
  std::vector<TopTokens> top_;
};

}  // namespace trireme::generate
