// The communicators of a layout, one per axis; and agree(), by which a failure of one rank throws
// on all.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "comm/mpi/mpi_communicator.hpp"
#include "grid/layout.hpp"

namespace trireme::comm {

/// This rank's coordinates and its groups. `world` transfers host memory; the others transfer
/// tensors in the backend's memory.
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

/// The axis of a layout that a group of ranks lies on; `embedding` is the ends of the pipeline's.
enum class Axis { tensor, data, pipeline, embedding };
std::string_view name_of(Axis axis);

/// Makes a communicator for a backend's memory from one of the same ranks for host memory.
/// Collective over its ranks.
using Connect =
    std::function<std::unique_ptr<Communicator>(Axis, std::unique_ptr<MpiCommunicator>)>;

/// Splits `world`, which must have layout.ranks() ranks, and passes each group to `connect` if
/// there is one. Collective over the world.
Groups make_groups(std::unique_ptr<MpiCommunicator> world, const grid::Layout& layout,
                   const Connect& connect = {});

/// Runs `step` on every rank. If it throws on any rank, all ranks throw the error of the lowest
/// one, as the class of its exit code (DataError, IoError, DeckError, UsageError, InternalError, or
/// Error with that code). `step` must not wait for other ranks. Collective.
void agree(MpiCommunicator& ranks, const std::function<void()>& step);

// The clocks of a group's ranks.

/// The offset from this rank's clock to the first rank's, and the bound of its error.
struct ClockOffset {
  double ms = 0, error_ms = 0;
};

/// Compares `clock_ms`, a clock in milliseconds that never jumps, with the first rank's as the
/// Network Time Protocol does: of several questions to that rank counts the one with the quickest
/// answer, and half its round trip bounds the error. Collective over `group`; the first rank
/// answers the others in turn.
ClockOffset clock_offset(MpiCommunicator& group, const std::function<double()>& clock_ms);

}  // namespace trireme::comm
