// Which blocks of a paged KV cache each sequence has: arithmetic alone, no memory.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

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
  /// Gives `to` the blocks of `from` instead of its own.
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

}  // namespace trireme::generate
