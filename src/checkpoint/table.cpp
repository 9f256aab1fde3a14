#include "checkpoint/table.hpp"

#include <set>
#include <string>

#include "checkpoint/checksum.hpp"
#include "comm/mpi/agree.hpp"
#include "core/error.hpp"
#include "core/philox.hpp"

namespace trireme::checkpoint {
namespace {

/// Of each tensor the checksums, then the counts, then the moments of the pieces that this rank
/// owns.
std::vector<std::uint64_t> own_sums(comm::MpiCommunicator& ranks,
                                    const std::vector<LocalTensor>& tensors, HostView& view) {
  comm::WatchedWork work = ranks.work("forming the checksums of a checkpoint");
  const std::size_t n = tensors.size();
  std::vector<std::uint64_t> sums(3 * n);
  for (std::size_t i = 0; i < n; ++i) {
    const LocalTensor& tensor = tensors[i];
    for (const Piece& piece : tensor.pieces) {
      if (!piece.owner) continue;
      view.read(piece.slabs, tensor.dtype, piece.data,
                [&](const grid::Hyperslabs& slabs, const void* data) {
                  sums[i] += checksum(tensor.shape, tensor.dtype, slabs, data);
                  work.note_progress();
                });
      sums[n + i] += static_cast<std::uint64_t>(count_elements(piece.slabs));
      sums[2 * n + i] += index_moment(tensor.shape, piece.slabs);
    }
  }
  return sums;
}

}  // namespace

void check_tensors(comm::MpiCommunicator& ranks, const std::vector<LocalTensor>& tensors) {
  std::string table;
  comm::agree(ranks, [&] {
    std::set<std::string> names;
    for (const LocalTensor& tensor : tensors) {
      TRIREME_CHECK(names.insert(tensor.name).second, "tensor '{}' is listed twice", tensor.name);
      for (const Piece& piece : tensor.pieces)
        check_hyperslabs(tensor.name, tensor.shape, piece.slabs);
      table +=
          fmt::format("{} {} {}\n", tensor.name, to_string(tensor.shape), name_of(tensor.dtype));
    }
  });
  const std::vector<std::string> hashes =
      ranks.all_gather_text(std::to_string(name_hash(table.c_str())));
  for (std::size_t rank = 0; rank < hashes.size(); ++rank)
    TRIREME_CHECK(hashes[rank] == hashes[0], "ranks 0 and {} of group '{}' list different tensors",
                  rank, ranks.name());
}

std::vector<std::uint64_t> total_checksums(comm::MpiCommunicator& ranks,
                                           const std::vector<LocalTensor>& tensors,
                                           HostView& view) {
  const std::size_t n = tensors.size();
  std::vector<std::uint64_t> sums = own_sums(ranks, tensors, view);
  ranks.all_reduce_sum(sums.data(), sums.size());
  for (std::size_t i = 0; i < n; ++i) {
    const LocalTensor& tensor = tensors[i];
    const auto size = static_cast<std::uint64_t>(tensor.shape.size());
    TRIREME_CHECK(sums[n + i] == size, "tensor '{}' {}: {} elements are owned, not {}", tensor.name,
                  to_string(tensor.shape), sums[n + i], size);
    TRIREME_CHECK(sums[2 * n + i] == index_moment(tensor.shape, {grid::whole_tensor(tensor.shape)}),
                  "tensor '{}' {}: some elements have two owners and others none", tensor.name,
                  to_string(tensor.shape));
  }
  sums.resize(n);
  return sums;
}

}  // namespace trireme::checkpoint
