// Saving in three steps: rank 0 reserves the space and writes everything but the elements; all
// ranks write their elements concurrently; rank 0 syncs, renames and publishes. Loading: every rank
// reads what it needs, then all verify the checksums of the tensors.
#include "checkpoint/checkpoint.hpp"

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <system_error>

#include "checkpoint/elements.hpp"
#include "checkpoint/file.hpp"
#include "checkpoint/hdf5/metadata.hpp"
#include "comm/mpi/mpi_communicator.hpp"
#include "core/error.hpp"
#include "core/files.hpp"
#include "core/philox.hpp"
#include "model/parameters/store.hpp"
#include "optim/optimizer.hpp"

namespace trireme::checkpoint {

// ---------------------------------------------------------------------------- checks of all ranks

std::vector<std::uint64_t> own_checksums(const std::vector<LocalTensor>& tensors, HostView& view,
                                         const std::function<void()>& progressed) {
  std::vector<std::uint64_t> sums(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const LocalTensor& tensor = tensors[i];
    for (const Piece& piece : tensor.pieces) {
      if (!piece.owner) continue;
      view.read(piece.slabs, tensor.dtype, piece.data,
                [&](const grid::Hyperslabs& slabs, const void* data) {
                  sums[i] += checksum(kFormatVersion, tensor.shape, tensor.dtype, slabs, data);
                  progressed();
                });
    }
  }
  return sums;
}

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
                                           std::vector<std::uint64_t> sums) {
  const std::size_t n = tensors.size();
  sums.resize(3 * n);  // and the element counts, and the index moments
  for (std::size_t i = 0; i < n; ++i) {
    for (const Piece& piece : tensors[i].pieces) {
      if (!piece.owner) continue;
      sums[n + i] += static_cast<std::uint64_t>(count_elements(piece.slabs));
      sums[2 * n + i] += index_moment(tensors[i].shape, piece.slabs);
    }
  }
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

// ---------------------------------------------------------------------------- steps of save()

namespace {

/// own_checksums(), for which the other ranks wait.
std::vector<std::uint64_t> watched_checksums(comm::MpiCommunicator& ranks,
                                             const std::vector<LocalTensor>& tensors,
                                             HostView& view) {
  comm::WatchedWork work = ranks.work("computing the checksums of a checkpoint");
  return own_checksums(tensors, view, [&] { work.note_progress(); });
}

/// Runs `step`, which writes `unfinished`, on rank 0 while the others wait. Its error is thrown on
/// every rank; a failed HDF5 call becomes an IoError that names the file.
void on_first_rank(const std::filesystem::path& unfinished, comm::MpiCommunicator& ranks,
                   const std::function<void(comm::WatchedWork&)>& step) {
  comm::agree(ranks, [&] {
    if (ranks.rank() != 0) return;
    comm::WatchedWork work = ranks.work("writing '" + unfinished.string() + "'");
    try {
      step(work);
    } catch (const hdf5::Failure& failure) {
      throw IoError("cannot write '{}': {}", unfinished.string(), failure.what());
    }
  });
}

}  // namespace

std::filesystem::path unfinished_name(const std::filesystem::path& path) {
  return std::filesystem::absolute(path).string() + ".part";
}

void rename_and_publish(const std::filesystem::path& unfinished,
                        const std::filesystem::path& path) {
  sync_path(unfinished);
  std::error_code error;
  std::filesystem::rename(unfinished, path, error);
  if (error)
    throw IoError("cannot rename '{}' to '{}': {}", unfinished.string(), path.string(),
                  error.message());
  sync_path(path.parent_path());
  publish(path);
}

namespace {

/// Runs `steps`, which write `unfinished`; removes the files of reserve_files() when they throw.
void clean_up_after(const std::filesystem::path& unfinished, comm::MpiCommunicator& ranks,
                    int count, const std::function<void()>& steps) {
  try {
    steps();
  } catch (...) {
    if (ranks.rank() == 0) remove_files(unfinished, count);
    throw;
  }
}

// ---------------------------------------------------------------------------- checks of load()

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

// ---------------------------------------------------------------------------- elements of load()

/// Bytes that a thread reads at a time, and threads of a rank at most: one reads and compares
/// checksums at about half of the speed at which storage in memory is read.
constexpr std::int64_t kReadBytes = std::int64_t{16} << 20;
constexpr int kMaxReaders = 4;

/// What a thread reads at a time: part of a piece.
struct Part {
  std::size_t tensor = 0;
  grid::Hyperslabs slabs;
  std::byte* data = nullptr;
  std::int64_t bytes = 0;
  bool owner = true;
  std::uint64_t checksum = 0;
};

std::vector<Part> split_pieces(const std::vector<LocalTensor>& tensors, std::int64_t part_bytes) {
  std::vector<Part> parts;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto width = static_cast<std::int64_t>(size_of(tensors[i].dtype));
    for (const Piece& piece : tensors[i].pieces) {
      const std::int64_t count = count_elements(piece.slabs), step = part_bytes / width;
      for (std::int64_t begin = 0; begin < count; begin += step) {
        const std::int64_t end = std::min(begin + step, count);
        parts.push_back({.tensor = i,
                         .slabs = slice_hyperslabs(piece.slabs, begin, end),
                         .data = static_cast<std::byte*>(piece.data) + begin * width,
                         .bytes = (end - begin) * width,
                         .owner = piece.owner});
      }
    }
  }
  return parts;
}

/// Reads the pieces of `tensors` with `threads` threads, of which HDF5 allows one where elements
/// are compressed. Returns the checksums of those that this rank owns, by tensor. No MPI.
std::vector<std::uint64_t> read_elements(const Reader& reader,
                                         const std::vector<LocalTensor>& tensors, int threads,
                                         device::Backend* memory,
                                         const std::function<void()>& progressed) {
  bool packed = false;
  std::vector<const TensorInfo*> stored;
  for (const LocalTensor& tensor : tensors) {
    stored.push_back(reader.header().find(tensor.name));
    packed = packed || !stored.back()->offset;
  }
  const bool in_place = !memory || memory->is_host_memory();
  const std::int64_t part_bytes = packed ? HostView::kPieceBytes : kReadBytes;
  std::vector<Part> parts = split_pieces(tensors, part_bytes);
  read_ahead(
      parts.size(), packed ? 1 : threads, in_place ? 0 : static_cast<std::size_t>(part_bytes),
      [&](std::size_t i, void* buffer) {
        Part& part = parts[i];
        void* const data = in_place ? part.data : buffer;
        if (part.owner)
          part.checksum = reader.read_with_checksum(*stored[part.tensor], part.slabs, data);
        else
          reader.read(*stored[part.tensor], part.slabs, data);
      },
      [&](std::size_t i, const void* buffer) {
        if (!in_place)
          memory->upload(parts[i].data, buffer, static_cast<std::size_t>(parts[i].bytes));
        progressed();
      });
  std::vector<std::uint64_t> sums(tensors.size());
  for (const Part& part : parts) sums[part.tensor] += part.checksum;
  return sums;
}

}  // namespace

void save(const std::filesystem::path& path, comm::MpiCommunicator& ranks,
          const Attributes& attributes, const std::string& deck,
          const std::vector<LocalTensor>& tensors, device::Backend* memory, int compression) {
  HostView view(memory);
  check_tensors(ranks, tensors);
  const std::vector<std::uint64_t> checksums =
      total_checksums(ranks, tensors, watched_checksums(ranks, tensors, view));
  const std::filesystem::path unfinished = unfinished_name(path);
  clean_up_after(unfinished, ranks, /*count=*/1, [&] {
    std::vector<std::int64_t> offsets(tensors.size());
    on_first_rank(unfinished, ranks, [&](comm::WatchedWork& work) {
      reserve_files(unfinished, max_file_bytes(deck, tensors));
      PartFile file(unfinished, [&] { work.note_progress(); });
      offsets = write_metadata(file, attributes, deck, tensors, checksums);
    });
    ranks.broadcast(offsets.data(), offsets.size() * sizeof offsets[0], 0);
    write_elements(unfinished, ranks, tensors, offsets, view);
    on_first_rank(unfinished, ranks, [&](comm::WatchedWork& work) {
      if (compression > 0)
        compress(unfinished, {attributes, deck, tensors, checksums}, offsets, compression,
                 [&] { work.note_progress(); });
      rename_and_publish(unfinished, std::filesystem::absolute(path));
    });
  });
}

void preflight_save(const std::filesystem::path& path, comm::MpiCommunicator& ranks,
                    const std::string& deck, const std::vector<LocalTensor>& tensors, int count) {
  const std::filesystem::path unfinished = unfinished_name(path);
  clean_up_after(unfinished, ranks, count, [&] {
    std::vector<std::int64_t> offsets(tensors.size());
    on_first_rank(unfinished, ranks, [&](comm::WatchedWork& work) {
      reserve_files(unfinished, max_file_bytes(deck, tensors), count);
      PartFile file(unfinished, [&] { work.note_progress(); });
      const std::vector<std::uint64_t> checksums(tensors.size());
      offsets = write_metadata(file, {}, deck, tensors, checksums);
    });
    ranks.broadcast(offsets.data(), offsets.size() * sizeof offsets[0], 0);
    if (!offsets.empty()) test_write(unfinished, ranks, offsets[0]);
  });
  if (ranks.rank() == 0) remove_files(unfinished, count);
}

Header load(const std::filesystem::path& path, comm::MpiCommunicator& ranks,
            const std::vector<LocalTensor>& tensors, device::Backend* memory) {
  check_tensors(ranks, tensors);
  const int threads = device::threads_for_rank(comm::ranks_sharing_cores(ranks));
  Header header;
  std::vector<std::uint64_t> sums;
  // Each rank opens the file without the others: no collective call can hang on a damaged file.
  comm::agree(ranks, [&] {
    comm::WatchedWork work = ranks.work("reading '" + path.string() + "'");
    const Reader reader(path);
    check_against(reader.header(), tensors, path.string());
    header = reader.header();
    sums = read_elements(reader, tensors, std::min(threads, kMaxReaders), memory,
                         [&] { work.note_progress(); });
  });
  sums = total_checksums(ranks, tensors, std::move(sums));
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (sums[i] != header.find(tensors[i].name)->checksum)
      throw DataError(
          "'{}': tensor '{}' is damaged: its checksum does not match; move the file away to resume "
          "from the newest complete checkpoint, or name another one",
          path.string(), tensors[i].name);
  return header;
}

// ---------------------------------------------------------------------------- the tensors of a run

namespace {

/// One LocalTensor per parameter of the table, without pieces.
std::vector<LocalTensor> empty_tensors(const model::ParameterStore& parameters,
                                       const std::string& prefix) {
  std::vector<LocalTensor> tensors;
  for (const model::Parameter& parameter : parameters.table())
    tensors.push_back({.name = prefix + parameter.name,
                       .shape = parameter.shape,
                       .dtype = parameters.precision().master});
  return tensors;
}

void* element(const Tensor& flat, std::int64_t index) { return flat.rows(index, 0).data; }

}  // namespace

std::vector<LocalTensor> checkpoint_tensors(const model::ParameterStore& parameters,
                                            const optim::Optimizer& optimizer) {
  std::vector<LocalTensor> all;
  const auto add = [&](const std::string& group, bool of_matrices, const auto& data_of) {
    const auto is_held = [&](const model::Parameter& parameter) {
      return of_matrices || group_of(parameter) != model::ParameterGroup::matrix;
    };
    std::vector<LocalTensor> tensors = empty_tensors(parameters, group + "/");
    for (const optim::OwnedPart& part : optimizer.owned_parts())
      if (is_held(*part.parameter))
        tensors[part.parameter - parameters.table().data()].pieces.push_back(
            {.slabs = part.slabs, .data = data_of(part), .owner = part.primary});
    for (std::size_t i = 0; i < tensors.size(); ++i)
      if (is_held(parameters.table()[i])) all.push_back(std::move(tensors[i]));
  };
  add("model", /*of_matrices=*/true,
      [&](const optim::OwnedPart& part) { return optimizer.master(part).data; });
  for (const optim::OptimizerState& state : optimizer.states())
    add("optimizer/" + state.name, state.of_matrices,
        [&](const optim::OwnedPart& part) { return element(state.tensor, part.state_offset); });
  return all;
}

std::vector<LocalTensor> weight_tensors(const model::ParameterStore& parameters,
                                        bool first_data_rank) {
  TRIREME_CHECK(parameters.precision().weights == parameters.precision().master,
                "{} weights are not what a checkpoint holds",
                name_of(parameters.precision().weights));
  std::vector<LocalTensor> tensors = empty_tensors(parameters, "model/");
  const model::Parameter* first = parameters.table().data();
  for (const model::LocalParameter& local : parameters.placement().parameters)
    for (const model::LocalBlocks& blocks : local.blocks)
      tensors[local.parameter - first].pieces.push_back(
          {.slabs = grid::slice_hyperslabs(local.slabs, blocks.range.begin - local.offset,
                                           blocks.range.end - local.offset),
           .data = element(parameters.weights(), blocks.range.begin),
           .owner = blocks.primary && first_data_rank});
  return tensors;
}

}  // namespace trireme::checkpoint
