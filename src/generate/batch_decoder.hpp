// A GPT in inference on one rank, or on tensor and pipeline ranks: several sequences with a paged
// KV cache, whose new tokens go through the model together.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/mpi/mpi_communicator.hpp"
#include "device/backend.hpp"
#include "generate/decoder.hpp"
#include "generate/paged_cache.hpp"
#include "model/layers/block.hpp"
#include "model/layers/embedding.hpp"
#include "model/layers/head.hpp"

namespace trireme::generate {

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
