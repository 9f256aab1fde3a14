#include "generate/block_table.hpp"

#include "core/error.hpp"

namespace trireme::generate {

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

}  // namespace trireme::generate
