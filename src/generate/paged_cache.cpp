#include "generate/batch_decoder.hpp"

#include <algorithm>

#include "core/error.hpp"
#include "core/files.hpp"
#include "core/text.hpp"
#include "device/backend.hpp"

namespace trireme::generate {

// ---- the table

BlockTable::BlockTable(std::int64_t sequences, std::int64_t capacity, std::int64_t blocks,
                       std::int64_t positions)
    : positions_(positions),
      columns_((capacity + positions - 1) / positions),
      table_(sequences * columns_),
      counts_(sequences),
      owners_(blocks) {
  for (std::int64_t block = blocks - 1; block >= 0; --block)
    free_.push_back(static_cast<std::int32_t>(block));
}

std::int32_t BlockTable::take() {
  if (free_.empty())
    throw DataError(
        "the KV cache is full: all of its {} blocks of {} positions are in use; give it more "
        "positions, or fewer or shorter sequences",
        blocks(), positions_);
  const std::int32_t block = free_.back();
  free_.pop_back();
  owners_[block] = 1;
  return block;
}

void BlockTable::truncate(int sequence, std::int64_t count) {
  for (; counts_[sequence] > count; ++version_) {
    std::int32_t& last = entry(sequence, --counts_[sequence]);
    if (--owners_[last] == 0) free_.push_back(last);
    last = 0;
  }
}

void BlockTable::release(int sequence) { truncate(sequence, 0); }

std::vector<std::pair<std::int32_t, std::int32_t>> BlockTable::prepare(int sequence,
                                                                       std::int64_t begin,
                                                                       std::int64_t end) {
  TRIREME_CHECK(blocks_for(begin) <= counts_[sequence] && blocks_for(end) <= columns_,
                "positions {} to {} of a sequence with {} blocks", begin, end, counts_[sequence]);
  truncate(sequence, blocks_for(begin));
  std::vector<std::pair<std::int32_t, std::int32_t>> copies;
  if (begin % positions_ != 0) {
    std::int32_t& partial = entry(sequence, begin / positions_);
    if (owners_[partial] > 1) {
      const std::int32_t own = take();
      copies.emplace_back(partial, own);
      --owners_[partial];
      partial = own;
      ++version_;
    }
  }
  for (; counts_[sequence] < blocks_for(end); ++version_) {
    const std::int32_t block = take();
    entry(sequence, counts_[sequence]++) = block;
  }
  return copies;
}

void BlockTable::share(int from, int to) {
  if (from == to) return;
  truncate(to, 0);
  for (; counts_[to] < counts_[from]; ++version_) {
    const std::int32_t block = entry(from, counts_[to]);
    ++owners_[block];
    entry(to, counts_[to]++) = block;
  }
}

// ---- the memory

namespace {

constexpr std::int64_t kPositions = CachePlan::kPositions;

/// Keys, or values, of a block of one layer.
Shape shape_of(const CachedLayers& layers, std::int64_t layer) {
  const auto& attention = layers.spec.blocks[layers.first + layer].attention;
  return {attention.local_kv_heads(layers.tensor_ranks), kPositions, attention.head_dim};
}

}  // namespace

std::string CachePlan::text() const {
  std::string text = fmt::format("{} of {} positions, {}", counted(blocks, "block"), kPositions,
                                 human_bytes(static_cast<double>(bytes())));
  if (pass_bytes > 0)
    text += fmt::format(", and {} for passes over one token",
                        human_bytes(static_cast<double>(pass_bytes)));
  return text;
}

double CachePlan::blocks_in(std::size_t free) const {
  constexpr double kUsable = 0.9;  // of what is free: libraries allocate, too
  return std::max(0.0, kUsable * static_cast<double>(free) - static_cast<double>(pass_bytes)) /
         static_cast<double>(block_bytes);
}

std::size_t planned_pass_bytes(const CachedLayers& layers) {
  if (layers.tensor_ranks > 1 || size_of(layers.dtype) != 2) return 0;
  std::vector<device::PassLayer> widths;
  for (std::int64_t i = 0; i < layers.count; ++i) {
    const model::BlockSpec& block = layers.spec.blocks[layers.first + i];
    widths.push_back({.hidden = layers.spec.hidden,
                      .ffn = block.mlp.width,
                      .heads = block.attention.heads,
                      .kv_heads = block.attention.kv_heads,
                      .head_dim = block.attention.head_dim});
  }
  constexpr std::size_t kKinds = 2;  // of results
  return kKinds * device::decoding_pass_bytes(widths, layers.spec.vocab);
}

CachePlan PagedCache::make_plan(const device::Backend& backend, const CachedLayers& layers,
                                const BatchLimits& limits, comm::Communicator* world) {
  CachePlan plan;
  for (std::int64_t i = 0; i < layers.count; ++i)
    plan.block_bytes += 2 * shape_of(layers, i).size() * size_of(layers.dtype);
  const std::int64_t capacity = layers.spec.embedding.positions,
                     longest = (capacity + kPositions - 1) / kPositions;
  const bool given = limits.cache_positions > 0;
  auto blocks = static_cast<double>(given ? (limits.cache_positions + kPositions - 1) / kPositions
                                          : limits.sequences * longest);
  if (const auto memory = backend.memory(); memory.total > 0 && plan.block_bytes > 0) {
    plan.pass_bytes = planned_pass_bytes(layers);
    if (!given) blocks = std::min(blocks, plan.blocks_in(memory.total - memory.used));
  }
  if (world) blocks = world->all_reduce(blocks, comm::Reduce::min);
  plan.blocks = static_cast<std::int64_t>(blocks);
  if (!given && plan.blocks < longest)
    throw CodedError<ExitCode::failure>(
        "no memory for the KV cache: {} positions fit, and a sequence of the model has {}; set the "
        "number of positions to cache (--cache)",
        plan.blocks * kPositions, capacity);
  return plan;
}

PagedCache::PagedCache(device::Backend& backend, const CachedLayers& layers,
                       const BatchLimits& limits, comm::Communicator* world)
    : backend_(backend),
      plan_(make_plan(backend, layers, limits, world)),
      table_(limits.sequences, std::min(layers.spec.embedding.positions, plan_.blocks * kPositions),
             plan_.blocks, kPositions) {
  memory_ = backend.allocate(std::max<std::size_t>(plan_.bytes(), 1), "key and value caches");
  table_memory_ = backend.allocate(table_.table().size_bytes(), "block table");
  auto* next = static_cast<std::byte*>(memory_.get());
  for (std::int64_t i = 0; i < layers.count; ++i) {
    const Tensor keys{next, layers.dtype, shape_of(layers, i)};
    const Tensor values{next + keys.bytes(), layers.dtype, keys.shape};
    next += 2 * keys.bytes();
    layers_.push_back(
        {.keys = keys,
         .values = values,
         .stride = static_cast<std::int64_t>(plan_.block_bytes / size_of(layers.dtype)),
         .table = static_cast<const std::int32_t*>(table_memory_.get()),
         .columns = table_.columns()});
  }
}

void PagedCache::prepare(int sequence, std::int64_t begin, std::int64_t end) {
  auto* memory = static_cast<std::byte*>(memory_.get());
  for (const auto& [from, to] : table_.prepare(sequence, begin, end))
    backend_.copy(memory + to * plan_.block_bytes, memory + from * plan_.block_bytes,
                  plan_.block_bytes);
}

void PagedCache::upload_table() {
  if (uploaded_version_ == table_.version()) return;
  backend_.upload(table_memory_.get(), table_.table().data(), table_.table().size_bytes());
  uploaded_version_ = table_.version();
}

}  // namespace trireme::generate
