// Checkpoints on disks of the nodes (checkpoint.local): a shard is what one rank holds of a
// checkpoint, in a file on a disk of its node, which only a run with the same layout can read;
// and copies of shards on other nodes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/file.hpp"
#include "comm/mpi/mpi_communicator.hpp"
#include "device/backend.hpp"

namespace trireme::checkpoint {

/// What a shard says about itself.
struct ShardHeader {
  std::int64_t iteration = 0;
  int rank = 0;
  int ranks = 0;  ///< of the run
  Attributes attributes;
  std::string deck;
  std::uint64_t layout = 0;          ///< shard_layout() of its tensors
  std::vector<std::int64_t> pieces;  ///< the bytes of each, in the order of the tensors
  std::vector<std::string> tensors;  ///< whose they are; none in shards of earlier versions
  /// Names the save among all, of this run and of others in the same folder: equal in the shards of
  /// all ranks. Empty in shards of earlier versions.
  std::string save;
};

/// A hash of the names, shapes, types and pieces of `tensors`.
std::uint64_t shard_layout(const std::vector<LocalTensor>& tensors);

/// `folder`/step-00000100.rank-00003.shard; a `copy` of another node's ends with ".copy".
std::filesystem::path shard_path(const std::filesystem::path& folder, std::int64_t iteration,
                                 int rank, bool copy = false);

/// Writes all pieces of `tensors`, which lie in host memory, replicas included, and their hash: to
/// `path`.part, which is synced and renamed. `header` gains layout, pieces and tensors. One rank;
/// no MPI. `progressed` is called after each few MiB. Throws
/// IoError.
void write_shard(const std::filesystem::path& path, ShardHeader header,
                 const std::vector<LocalTensor>& tensors, const std::function<void()>& progressed);

/// The header of the shard at `path`, whose size must be right. Throws DataError, IoError.
ShardHeader read_shard_header(const std::filesystem::path& path);
/// Reads the payload and compares the hashes. Throws DataError naming the file and the structure or
/// all damaged tensors, IoError.
Verified verify_shard(const std::filesystem::path& path);
/// Fills all pieces of `tensors`, which lie in the memory of `memory`. Calls `progressed` after
/// each few MiB. Throws DataError where the shard has another layout or is damaged, IoError.
void read_shard(
    const std::filesystem::path& path, const std::vector<LocalTensor>& tensors,
    device::Backend* memory, const std::function<void()>& progressed = [] {});

/// What the name of a shard says.
struct ShardName {
  std::int64_t iteration = 0;
  int rank = 0;
  bool copy = false;
};
std::optional<ShardName> parse_shard_name(const std::string& text);

/// The shards in `folder`, by name; none where it cannot be read.
std::vector<std::pair<ShardName, std::filesystem::path>> list_shards(
    const std::filesystem::path& folder);
/// The shard of `rank` in `folder`: its own file, else a copy.
std::optional<std::filesystem::path> find_shard(const std::filesystem::path& folder,
                                                std::int64_t iteration, int rank);

/// What find_shards() appends to the name of a shard that is damaged.
inline constexpr const char* kDamaged = ".damaged";

/// Deletes the shards in `folder` whose iteration `is_old`, damaged ones, too, or those that were
/// not completed, which nothing may be writing. Throw nothing: a file that stays takes space alone.
void remove_shards(const std::filesystem::path& folder,
                   const std::function<bool(std::int64_t)>& is_old);
void remove_unfinished_shards(const std::filesystem::path& folder);

/// Creates an empty file `path`.part and its folder; renames it to `path`. Throw IoError.
std::filesystem::path create_part(const std::filesystem::path& path);
void rename_part(const std::filesystem::path& part, const std::filesystem::path& path);

// ---- copies on other nodes

/// Sends the shard of `iteration` to the next node and receives that of the node before; blocks.
/// Every rank is on one end of both. Calls `progressed`, which must not throw, after every few MiB.
/// Threads may call it, with a group that nothing else uses. Collective over `ranks`. Throws
/// IoError, InternalError; then there is no copy, nor a part of one.
void exchange_copies(
    const std::filesystem::path& folder, std::int64_t iteration, comm::MpiCommunicator& ranks,
    const std::vector<int>& nodes, const std::function<void()>& progressed = [] {});

/// The newest iteration up to `last` of which each of the `nodes` has copies of another's shards in
/// `folder`; -1 without. Collective over `ranks`.
std::int64_t newest_copied(const std::filesystem::path& folder, std::int64_t last,
                           comm::MpiCommunicator& ranks, const std::vector<int>& nodes);

/// For each rank of `world` the number of its node. Collective.
std::vector<int> nodes_of(comm::MpiCommunicator& world);

/// The newest iteration above `newer_than` of which every rank has its shard or can get it from
/// another node's copy, with payloads that are not damaged and headers that are `usable` and of one
/// save; its header. Ranks without their own shard receive it into their folder first. Empty where
/// there is none; `note` then says why shards that exist are not used. Collective over `world`.
std::optional<ShardHeader> find_shards(const std::filesystem::path& folder,
                                       comm::MpiCommunicator& world, std::int64_t newer_than,
                                       const std::function<bool(const ShardHeader&)>& usable,
                                       std::string& note);

}  // namespace trireme::checkpoint
