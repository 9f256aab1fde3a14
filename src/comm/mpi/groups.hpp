// One communicator per axis of the layout.
#pragma once

#include <functional>
#include <memory>

#include "comm/mpi/mpi_communicator.hpp"
#include "grid/layout.hpp"

namespace trireme::comm {

/// This rank's place and its groups. `world` carries values of the host; the others carry tensors,
/// in the memory of the backend that computes.
struct Groups {
  grid::Layout layout;
  grid::Coordinates place;
  std::unique_ptr<MpiCommunicator> world;
  std::unique_ptr<Communicator> tensor;  ///< same data and pipeline coordinate
  std::unique_ptr<Communicator> data;    ///< same tensor and pipeline coordinate
  /// Same tensor and data coordinate; rank r is stage r.
  std::unique_ptr<Communicator> pipeline;
  /// First and last stage; null elsewhere, and where they are one.
  std::unique_ptr<Communicator> embedding;

  bool is_first_stage() const { return layout.is_first(place.pipeline); }
  bool is_last_stage() const { return layout.is_last(place.pipeline); }
};

/// Makes a communicator over a backend's memory from one of the same ranks over the host's.
/// Collective over its ranks.
using Connect = std::function<std::unique_ptr<Communicator>(std::unique_ptr<MpiCommunicator>)>;

/// Splits `world`, which must have layout.ranks() ranks; each group but the world is what `connect`
/// makes of it, itself when there is none. Collective over the world.
Groups make_groups(std::unique_ptr<MpiCommunicator> world, const grid::Layout& layout,
                   const Connect& connect = {});

}  // namespace trireme::comm
