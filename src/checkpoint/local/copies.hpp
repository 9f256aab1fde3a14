// Checkpoints on disks of the nodes (checkpoint.local): a shard of each rank, and copies of them on
// other nodes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/local/shard.hpp"
#include "comm/mpi/mpi_communicator.hpp"

namespace trireme::checkpoint {

/// Sends the shard of `iteration` to the next node and receives that of the node before; blocks.
/// Every rank is on one end of both. Threads may call it, with a group that nothing else uses.
/// Collective over `ranks`. Throws IoError, InternalError.
void exchange_copies(const std::filesystem::path& folder, std::int64_t iteration,
                     comm::MpiCommunicator& ranks, const std::vector<int>& nodes);

/// The newest iteration of which each of the `nodes` has copies of another's shards in `folder`; -1
/// without. Collective over `ranks`.
std::int64_t newest_copied(const std::filesystem::path& folder, comm::MpiCommunicator& ranks,
                           const std::vector<int>& nodes);

/// For each rank of `world` the number of its node. Collective.
std::vector<int> nodes_of(comm::MpiCommunicator& world);

/// The newest iteration above `newer_than` of which every rank has its shard or can get it from
/// another node's copy, with payloads that are not damaged and headers that are `usable`; its
/// header. Ranks without their own shard receive it into their folder first. Empty where there is
/// none; `note` then says why shards that exist are not used. Collective over `world`.
std::optional<ShardHeader> find_shards(const std::filesystem::path& folder,
                                       comm::MpiCommunicator& world, std::int64_t newer_than,
                                       const std::function<bool(const ShardHeader&)>& usable,
                                       std::string& note);

}  // namespace trireme::checkpoint
