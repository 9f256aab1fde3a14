// Saving in three steps: rank 0 writes everything but the elements and reserves the space; all
// ranks write their elements at once; rank 0 syncs, renames and publishes.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <system_error>

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/folder.hpp"
#include "checkpoint/hdf5.hpp"
#include "checkpoint/skeleton.hpp"
#include "checkpoint/table.hpp"
#include "comm/mpi/agree.hpp"
#include "core/error.hpp"
#include "core/files.hpp"

namespace trireme::checkpoint {

using hdf5::Handle;

namespace {

// ---------------------------------------------------------------------------- rank 0: room

void make_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw IoError("cannot make '{}': {}", folder.string(), error.message());
}

/// Takes disk blocks for `bytes` of the file, so that a full disk or a quota is found as one clear
/// error before anything is written, and not by a write among many. File systems that cannot do it
/// find it then.
void reserve_space(const std::filesystem::path& path, std::int64_t bytes) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (file < 0) throw IoError("cannot open '{}': {}", path.string(), std::strerror(errno));
  int error = 0;
  do {
    error = ::fallocate(file, 0, 0, bytes) == 0 ? 0 : errno;
  } while (error == EINTR);
  ::close(file);
  if (error != 0 && error != EOPNOTSUPP && error != ENOSYS)
    throw IoError("cannot reserve {} for '{}': {}", human_bytes(static_cast<double>(bytes)),
                  path.string(), std::strerror(error));
}

/// Makes the folder of `unfinished`, clears it of what killed runs have left, and takes the blocks.
void make_room(const std::filesystem::path& unfinished, std::int64_t bytes) {
  make_folder(unfinished.parent_path());
  remove_unfinished(unfinished.parent_path());
  reserve_space(unfinished, bytes);
}

/// make_room for `count` files of `bytes` at once.
void make_room(const std::filesystem::path& unfinished, std::int64_t bytes, int count) {
  make_room(unfinished, bytes);
  try {
    for (int number = 2; number <= count; ++number)
      reserve_space(fmt::format("{}.{}", unfinished.string(), number), bytes);
  } catch (const IoError& error) {
    throw IoError("{}; checkpoint.keep takes room for {} more checkpoints at once", error.what(),
                  count);
  }
}

void remove_quietly(const std::filesystem::path& path) {
  std::error_code ignored;
  std::filesystem::remove(path, ignored);
}

/// At least the bytes of a checkpoint of `tensors`: a tensor's metadata and its share of the groups
/// take less than 2 KiB.
std::int64_t upper_size(const std::string& deck, const std::vector<LocalTensor>& tensors) {
  std::int64_t bytes = 65536 + static_cast<std::int64_t>(deck.size());
  for (const LocalTensor& tensor : tensors)
    bytes += tensor.shape.size() * static_cast<std::int64_t>(size_of(tensor.dtype)) + 2048;
  return bytes;
}

// ---------------------------------------------------------------------------- all ranks: elements

/// Runs `step` on every rank; a failed HDF5 call in it becomes an IoError that names the file, on
/// every rank.
void agree_to_write(const std::filesystem::path& path, comm::MpiCommunicator& ranks,
                    const std::function<void()>& step) {
  comm::agree(ranks, [&] {
    try {
      step();
    } catch (const hdf5::Failure& failure) {
      // MPI-IO does not tell the system's reason, which mostly is this one.
      std::error_code ignored;
      const auto room = std::filesystem::space(path.parent_path(), ignored);
      throw IoError("cannot write '{}': {} ({} free there)", path.string(), failure.what(),
                    human_bytes(static_cast<double>(room.available)));
    }
  });
}

/// Writes this rank's part of `tensor`.
void write_part(hid_t dataset, const LocalTensor& tensor, HostView& view) {
  for (const Piece& piece : tensor.pieces) {
    if (!piece.owner) continue;
    view.read(piece.boxes, tensor.dtype, piece.data, [&](const Boxes& boxes, const void* data) {
      const Handle file_space = hdf5::space_of(tensor.shape);
      hdf5::select(file_space.get(), tensor.shape, boxes);
      const Handle memory_space = hdf5::space_of({count_elements(boxes)});
      TRIREME_HDF5(H5Dwrite, dataset, hdf5::memory_type(tensor.dtype), memory_space.get(),
                   file_space.get(), H5P_DEFAULT, data);
    });
  }
}

/// Opens the file on all ranks, writes each rank's parts, and closes it.
///
/// The ranks write at once but not in collective transfers: Open MPI's collective write leaves the
/// other ranks waiting for ever when one rank's part of it finds the disk full, and is slower where
/// the rows of a shard are kilobytes long.
void write_elements(const std::filesystem::path& path, comm::MpiCommunicator& ranks,
                    const std::vector<LocalTensor>& tensors, HostView& view) {
  Handle file;
  std::vector<Handle> datasets;
  agree_to_write(path, ranks, [&] {
    const auto watched = ranks.watch("opening the checkpoint");
    const Handle access = hdf5::file_access();
    TRIREME_HDF5(H5Pset_fapl_mpio, access.get(), ranks.handle(), MPI_INFO_NULL);
    TRIREME_HDF5(H5Pset_all_coll_metadata_ops, access.get(), true);
    file = TRIREME_HDF5_OPEN(H5Fclose, H5Fopen, path.c_str(), H5F_ACC_RDWR, access.get());
    for (const LocalTensor& tensor : tensors)
      datasets.push_back(
          TRIREME_HDF5_OPEN(H5Dclose, H5Dopen2, file.get(), tensor.name.c_str(), H5P_DEFAULT));
  });
  std::string problem;
  const auto attempt = [&](auto&& step) {
    try {
      step();
    } catch (const hdf5::Failure& failure) {
      if (problem.empty()) problem = failure.what();
    }
  };
  attempt([&] {
    for (std::size_t i = 0; i < tensors.size(); ++i)
      write_part(datasets[i].get(), tensors[i], view);
  });
  // Flushing and closing are collective: a rank whose write failed takes part.
  auto watched = ranks.watch("closing the checkpoint");
  datasets.clear();
  attempt([&] { TRIREME_HDF5(H5Fflush, file.get(), H5F_SCOPE_GLOBAL); });
  attempt([&] { file.close(); });
  watched.reset();
  agree_to_write(path, ranks, [&] {
    if (!problem.empty()) throw hdf5::Failure(problem);
  });
}

/// Runs `step`, which writes `unfinished`, on rank 0; fails on every rank.
void on_first_rank(const std::filesystem::path& unfinished, comm::MpiCommunicator& ranks,
                   const std::function<void()>& step) {
  agree_to_write(unfinished, ranks, [&] {
    if (ranks.rank() == 0) step();
  });
}

std::filesystem::path unfinished_name(const std::filesystem::path& path) {
  return std::filesystem::absolute(path).string() + ".part";
}

/// Gives the finished file its name and tells `latest`.
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

}  // namespace

void save(const std::filesystem::path& path, comm::MpiCommunicator& ranks,
          const Attributes& attributes, const std::string& deck,
          const std::vector<LocalTensor>& tensors, device::Backend* memory) {
  hdf5::silence();
  HostView view(memory);
  const comm::LongerPatience patience(ranks, slow_storage_seconds(tensors));
  check_tensors(ranks, tensors);
  const std::vector<std::uint64_t> checksums = total_checksums(ranks, tensors, view);
  const std::filesystem::path unfinished = unfinished_name(path);
  try {
    on_first_rank(unfinished, ranks, [&] {
      // First a trial, because HDF5 1.10 cannot close a file whose metadata found no space; making
      // the file gives the blocks back, and then it takes what it really needs.
      make_room(unfinished, upper_size(deck, tensors));
      write_skeleton(unfinished, attributes, deck, tensors, checksums);
      reserve_space(unfinished, static_cast<std::int64_t>(std::filesystem::file_size(unfinished)));
    });
    write_elements(unfinished, ranks, tensors, view);
    on_first_rank(unfinished, ranks,
                  [&] { rename_and_publish(unfinished, std::filesystem::absolute(path)); });
  } catch (...) {
    if (ranks.rank() == 0) remove_quietly(unfinished);
    throw;
  }
}

void rehearse_save(const std::filesystem::path& path, comm::MpiCommunicator& ranks,
                   const std::string& deck, const std::vector<LocalTensor>& tensors, int count) {
  const std::filesystem::path unfinished = unfinished_name(path);
  on_first_rank(unfinished, ranks, [&] {
    const auto give_back = [&] {
      remove_quietly(unfinished);
      for (int number = 2; number <= count; ++number)
        remove_quietly(fmt::format("{}.{}", unfinished.string(), number));
    };
    try {
      make_room(unfinished, upper_size(deck, tensors), count);
    } catch (...) {
      give_back();
      throw;
    }
    give_back();
  });
}

}  // namespace trireme::checkpoint
