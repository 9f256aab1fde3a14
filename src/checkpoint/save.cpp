// Saving in three steps: rank 0 reserves the space and writes everything but the elements; all
// ranks write their elements at once; rank 0 syncs, renames and publishes.
#include <functional>
#include <system_error>

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/elements.hpp"
#include "checkpoint/folder.hpp"
#include "checkpoint/hdf5.hpp"
#include "checkpoint/metadata.hpp"
#include "checkpoint/part_file.hpp"
#include "checkpoint/room.hpp"
#include "checkpoint/table.hpp"
#include "comm/mpi/agree.hpp"
#include "core/error.hpp"
#include "core/files.hpp"

namespace trireme::checkpoint {
namespace {

/// Runs `step`, which writes `unfinished`, on rank 0 while the others wait; fails on every rank. A
/// failed HDF5 call in it becomes an IoError that names the file. `step` notes its progress.
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

std::filesystem::path unfinished_name(const std::filesystem::path& path) {
  return std::filesystem::absolute(path).string() + ".part";
}

/// Renames the finished file and names it in `latest`.
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

/// Runs `steps`, which write `unfinished`; where they throw, removes what make_room() made.
void clean_up_after(const std::filesystem::path& unfinished, comm::MpiCommunicator& ranks,
                    int count, const std::function<void()>& steps) {
  try {
    steps();
  } catch (...) {
    if (ranks.rank() == 0) remove_room(unfinished, count);
    throw;
  }
}

}  // namespace

void save(const std::filesystem::path& path, comm::MpiCommunicator& ranks,
          const Attributes& attributes, const std::string& deck,
          const std::vector<LocalTensor>& tensors, device::Backend* memory) {
  hdf5::silence();
  HostView view(memory);
  check_tensors(ranks, tensors);
  const std::vector<std::uint64_t> checksums = total_checksums(ranks, tensors, view);
  const std::filesystem::path unfinished = unfinished_name(path);
  clean_up_after(unfinished, ranks, /*count=*/1, [&] {
    std::vector<std::int64_t> offsets(tensors.size());
    on_first_rank(unfinished, ranks, [&](comm::WatchedWork& work) {
      make_room(unfinished, upper_size(deck, tensors));
      PartFile file(unfinished, [&] { work.note_progress(); });
      offsets = write_metadata(file, attributes, deck, tensors, checksums);
    });
    ranks.broadcast(offsets.data(), offsets.size() * sizeof offsets[0], 0);
    write_elements(unfinished, ranks, tensors, offsets, view);
    on_first_rank(unfinished, ranks, [&](comm::WatchedWork&) {
      rename_and_publish(unfinished, std::filesystem::absolute(path));
    });
  });
}

void preflight_save(const std::filesystem::path& path, comm::MpiCommunicator& ranks,
                    const std::string& deck, const std::vector<LocalTensor>& tensors, int count) {
  hdf5::silence();
  const std::filesystem::path unfinished = unfinished_name(path);
  clean_up_after(unfinished, ranks, count, [&] {
    std::vector<std::int64_t> offsets(tensors.size());
    on_first_rank(unfinished, ranks, [&](comm::WatchedWork& work) {
      make_room(unfinished, upper_size(deck, tensors), count);
      PartFile file(unfinished, [&] { work.note_progress(); });
      const std::vector<std::uint64_t> checksums(tensors.size());
      offsets = write_metadata(file, {}, deck, tensors, checksums);
    });
    ranks.broadcast(offsets.data(), offsets.size() * sizeof offsets[0], 0);
    if (!offsets.empty()) try_to_write(unfinished, ranks, offsets[0]);
  });
  if (ranks.rank() == 0) remove_room(unfinished, count);
}

}  // namespace trireme::checkpoint
