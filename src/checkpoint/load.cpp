#include <set>

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/table.hpp"
#include "comm/mpi/agree.hpp"
#include "core/error.hpp"

namespace trireme::checkpoint {
namespace {

/// "model" for "model/norm/weight".
std::string top_group(const std::string& name) { return name.substr(0, name.find('/')); }

/// Throws DataError unless the file has exactly `tensors` in the top-level groups that they name.
void check_against(const Header& header, const std::vector<LocalTensor>& tensors,
                   const std::string& file) {
  std::set<std::string> groups;
  std::set<std::string> names;
  for (const LocalTensor& tensor : tensors) {
    groups.insert(top_group(tensor.name));
    names.insert(tensor.name);
    const TensorInfo* stored = header.find(tensor.name);
    if (!stored)
      throw DataError("'{}' has no tensor '{}': it belongs to another model", file, tensor.name);
    if (stored->shape != tensor.shape)
      throw DataError("'{}': tensor '{}' has shape {}, but this model's has {}", file, tensor.name,
                      to_string(stored->shape), to_string(tensor.shape));
    if (stored->dtype != tensor.dtype)
      throw DataError("'{}': tensor '{}' is {}, but this model's is {}", file, tensor.name,
                      name_of(stored->dtype), name_of(tensor.dtype));
  }
  for (const TensorInfo& stored : header.tensors)
    if (groups.count(top_group(stored.name)) && !names.count(stored.name))
      throw DataError("'{}' has a tensor '{}' {}, which this model does not have", file,
                      stored.name, to_string(stored.shape));
}

}  // namespace

Header load(const std::filesystem::path& path, comm::MpiCommunicator& ranks,
            const std::vector<LocalTensor>& tensors, device::Backend* memory) {
  check_tensors(ranks, tensors);
  HostView view(memory);
  Header header;
  // Each rank reads what it needs through a file of its own: nothing collective can hang on a
  // damaged file.
  comm::agree(ranks, [&] {
    comm::WatchedWork work = ranks.work("reading '" + path.string() + "'");
    const Reader reader(path);
    check_against(reader.header(), tensors, path.string());
    for (const LocalTensor& tensor : tensors)
      for (const Piece& piece : tensor.pieces)
        view.write(piece.slabs, tensor.dtype, piece.data,
                   [&](const grid::Hyperslabs& slabs, void* data) {
                     reader.read(*reader.header().find(tensor.name), slabs, data);
                     work.note_progress();
                   });
    header = reader.header();
  });
  const std::vector<std::uint64_t> sums = total_checksums(ranks, tensors, view);
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (sums[i] != header.find(tensors[i].name)->checksum)
      throw DataError(
          "'{}': tensor '{}' is damaged: its checksum does not match; move the file away to go on "
          "from the newest one that is whole, or name another",
          path.string(), tensors[i].name);
  return header;
}

}  // namespace trireme::checkpoint
