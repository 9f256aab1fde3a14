// What a run computes on: the backend of each rank, and communicators over its memory.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "comm/mpi/mpi_communicator.hpp"
#include "deck/deck.hpp"
#include "device/backend.hpp"
#include "plan/run_plan.hpp"

namespace trireme::train {

/// What `run.device: auto` stands for on this machine: cuda when this build has the CUDA backend
/// and there is a GPU.
deck::Device automatic_device();

/// What a rank computes and communicates with. The groups must be gone before the backend, whose
/// memory they use.
struct Devices {
  std::unique_ptr<device::Backend> backend;
  comm::Groups groups;
  std::string description;  ///< "2 threads a rank, host backend", for rank 0's introduction
};

/// The deck's device for every rank: host threads, or the GPU whose number is the rank's among
/// those of its node; and the groups of the deck's layout, over MPI or NCCL. Collective over
/// `world`. Throws Error (exit 1) saying what is missing: GPUs, NCCL.
Devices make_devices(const deck::Deck& deck, std::unique_ptr<comm::MpiCommunicator> world);

/// The memory that a run of `deck` finds on this machine: its smallest GPU's, or what its host has
/// free; nothing where it has no GPU.
std::optional<plan::AvailableMemory> memory_here(const deck::Deck& deck);

/// Throws CollectiveError (exit 1) unless each rank's GPU has room for what the plan of `deck` says
/// that it needs, or each host for what its ranks need together: names the rank and host, the
/// largest purpose and plan::suggestions(). Collective over `world`.
void require_memory(const deck::Deck& deck, std::int64_t vocab, const device::Backend& backend,
                    const comm::Groups& groups);

}  // namespace trireme::train
