#include "checkpoint/elements.hpp"

#include <algorithm>
#include <array>
#include <bit>

#include "checkpoint/part_file.hpp"
#include "comm/mpi/groups.hpp"

namespace trireme::checkpoint {
namespace {

// Elements go to the file as they are in memory, and it is little-endian.
static_assert(std::endian::native == std::endian::little);

/// Bytes of a rank after which the ranks agree.
constexpr std::int64_t kRoundBytes = std::int64_t{1} << 30;

/// Part of a piece, small enough for HostView's buffer.
struct Slice {
  std::size_t tensor = 0;
  grid::Hyperslabs slabs;
  const void* data = nullptr;
};
using Round = std::vector<Slice>;

std::int64_t width_of(const LocalTensor& tensor) {
  return static_cast<std::int64_t>(size_of(tensor.dtype));
}

/// The pieces that this rank owns, in rounds of about kRoundBytes.
std::vector<Round> split_into_rounds(const std::vector<LocalTensor>& tensors) {
  std::vector<Round> rounds;
  std::int64_t left = 0;  // bytes of the last round
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::int64_t width = width_of(tensors[i]);
    const std::int64_t step = HostView::kPieceBytes / width;
    for (const Piece& piece : tensors[i].pieces) {
      const std::int64_t count = piece.owner ? count_elements(piece.slabs) : 0;
      for (std::int64_t begin = 0; begin < count; begin += step) {
        if (left <= 0) {
          rounds.emplace_back();
          left = kRoundBytes;
        }
        const std::int64_t end = std::min(begin + step, count);
        rounds.back().push_back(
            {.tensor = i,
             .slabs = slice_hyperslabs(piece.slabs, begin, end),
             .data = static_cast<const std::byte*>(piece.data) + begin * width});
        left -= (end - begin) * width;
      }
    }
  }
  return rounds;
}

}  // namespace

void write_elements(const std::filesystem::path& path, comm::MpiCommunicator& ranks,
                    const std::vector<LocalTensor>& tensors,
                    const std::vector<std::int64_t>& offsets, HostView& view) {
  const std::vector<Round> own = split_into_rounds(tensors);
  const auto rounds = static_cast<std::size_t>(
      ranks.all_reduce(static_cast<double>(own.size()), comm::Reduce::max));
  const auto write = [&](PartFile& file, const Slice& slice) {
    const LocalTensor& tensor = tensors[slice.tensor];
    view.read(slice.slabs, tensor.dtype, slice.data,
              [&](const grid::Hyperslabs& slabs, const void* data) {
                file.write(slabs, tensor.shape, width_of(tensor), data, offsets[slice.tensor]);
              });
  };
  for (std::size_t round = 0; round < rounds; ++round)
    comm::agree(ranks, [&] {
      if (round >= own.size()) return;
      comm::WatchedWork work = ranks.work("writing '" + path.string() + "'");
      PartFile file(path, [&] { work.note_progress(); });
      for (const Slice& slice : own[round]) write(file, slice);
      file.sync();
    });
}

void test_write(const std::filesystem::path& path, comm::MpiCommunicator& ranks,
                std::int64_t offset) {
  comm::agree(ranks, [&] {
    comm::WatchedWork work = ranks.work("writing '" + path.string() + "'");
    PartFile file(path, [&] { work.note_progress(); });
    constexpr std::array<char, 4> kZeros{};
    file.write(kZeros.data(), kZeros.size(), offset);
    file.sync();
  });
}

}  // namespace trireme::checkpoint
