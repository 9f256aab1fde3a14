#include "checkpoint/table.hpp"

#include <cmath>
#include <set>
#include <string>

#include "checkpoint/checksum.hpp"
#include "comm/mpi/agree.hpp"
#include "core/error.hpp"
#include "core/philox.hpp"

namespace trireme::checkpoint {
namespace {

/// What busy network storage may come down to.
constexpr double kSlowBytesPerSecond = 10e6;

}  // namespace

double slow_storage_seconds(const std::vector<LocalTensor>& tensors) {
  double bytes = 0.0;
  for (const LocalTensor& tensor : tensors)
    bytes += static_cast<double>(tensor.shape.size()) * static_cast<double>(size_of(tensor.dtype));
  return std::ceil(bytes / kSlowBytesPerSecond);
}

void check_tensors(comm::MpiCommunicator& ranks, const std::vector<LocalTensor>& tensors) {
  std::string table;
  comm::agree(ranks, [&] {
    std::set<std::string> names;
    for (const LocalTensor& tensor : tensors) {
      TRIREME_CHECK(names.insert(tensor.name).second, "tensor '{}' is listed twice", tensor.name);
      for (const Piece& piece : tensor.pieces) check_boxes(tensor.name, tensor.shape, piece.boxes);
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
  std::vector<std::uint64_t> sums(3 * n);  // checksums, then counts, then moments
  for (std::size_t i = 0; i < n; ++i) {
    const LocalTensor& tensor = tensors[i];
    for (const Piece& piece : tensor.pieces) {
      if (!piece.owner) continue;
      view.read(piece.boxes, tensor.dtype, piece.data, [&](const Boxes& boxes, const void* data) {
        sums[i] += checksum(tensor.shape, tensor.dtype, boxes, data);
      });
      sums[n + i] += static_cast<std::uint64_t>(count_elements(piece.boxes));
      sums[2 * n + i] += index_moment(tensor.shape, piece.boxes);
    }
  }
  ranks.all_reduce_sum(sums.data(), sums.size());
  for (std::size_t i = 0; i < n; ++i) {
    const LocalTensor& tensor = tensors[i];
    const auto size = static_cast<std::uint64_t>(tensor.shape.size());
    TRIREME_CHECK(sums[n + i] == size, "tensor '{}' {}: {} elements are owned, not {}", tensor.name,
                  to_string(tensor.shape), sums[n + i], size);
    TRIREME_CHECK(sums[2 * n + i] == index_moment(tensor.shape, {whole(tensor.shape)}),
                  "tensor '{}' {}: some elements have two owners and others none", tensor.name,
                  to_string(tensor.shape));
  }
  sums.resize(n);
  return sums;
}

}  // namespace trireme::checkpoint
