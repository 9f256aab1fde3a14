// One communicator per axis of the layout.
#pragma once

#include <memory>

#include "comm/mpi/mpi_communicator.hpp"
#include "grid/layout.hpp"

namespace trireme::comm {

/// This rank's place and its groups.
struct Groups {
  grid::Layout layout;
  grid::Coordinates place;
  std::unique_ptr<MpiCommunicator> world;
  std::unique_ptr<MpiCommunicator> tensor;  ///< same data and pipeline coordinate
  std::unique_ptr<MpiCommunicator> data;    ///< same tensor and pipeline coordinate
  /// Same tensor and data coordinate; rank r is stage r.
  std::unique_ptr<MpiCommunicator> pipeline;
  /// First and last stage; null elsewhere, and where they are one.
  std::unique_ptr<MpiCommunicator> embedding;

  bool is_first_stage() const { return layout.is_first(place.pipeline); }
  bool is_last_stage() const { return layout.is_last(place.pipeline); }
};

/// Splits `world`, which must have layout.ranks() ranks. Collective over it.
Groups make_groups(std::unique_ptr<MpiCommunicator> world, const grid::Layout& layout);

}  // namespace trireme::comm
