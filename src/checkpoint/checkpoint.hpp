// Checkpoints: one HDF5 file of full logical tensors, written by all ranks concurrently,
// independent of the layout that wrote it. checkpoint/file.hpp describes the file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/file.hpp"
#include "comm/mpi/mpi_communicator.hpp"
#include "core/tensor.hpp"
#include "device/backend.hpp"
#include "grid/layout.hpp"

namespace trireme::model {
class ParameterStore;
}
namespace trireme::optim {
class Optimizer;
}

namespace trireme::checkpoint {

/// Part of a tensor in this rank's memory.
struct Piece {
  grid::Hyperslabs slabs;  ///< where the elements belong; see grid::Hyperslabs for the order
  /// count_elements(slabs) elements, in host memory or that of the backend that save() and load()
  /// are told; save() only reads them
  void* data = nullptr;
  bool owner = true;  ///< false on replicas: they are read by load() and not written by save()
};

/// A logical tensor and what this rank holds of it: nothing, or one or more pieces.
struct LocalTensor {
  std::string name;  ///< path in the file, without a leading slash
  Shape shape;       ///< global shape, one or two axes
  DType dtype = DType::f32;
  std::vector<Piece> pieces;
};

/// Writes a checkpoint and publishes it: writes `path`.part, syncs it, renames it to `path`, and
/// then names it in the file `latest` of the same folder. A kill at any instant leaves the
/// checkpoint that `latest` names intact. Deletes the .part files of killed runs in the folder,
/// which is created when absent. `attributes` gains `format_version`; attributes and deck of rank 0
/// are written. The pieces lie in the memory of `memory`, null for the host's.
///
/// `compression`, of deflate, is 1 to 9; 0: elements are stored as they are. Collective over
/// `ranks`, which wait for each other as long as a rank writes and its bytes progress, however
/// slowly. Every rank passes the same tensors in the same order, each element of
/// a tensor in a piece of exactly one owner. Throws, on every rank, IoError with the file, the rank
/// and the system's reason when the file cannot be written (the previous checkpoint stays),
/// InternalError naming the tensor when ownership is wrong.
void save(const std::filesystem::path& path, comm::MpiCommunicator& ranks,
          const Attributes& attributes, const std::string& deck,
          const std::vector<LocalTensor>& tensors, device::Backend* memory = nullptr,
          int compression = 0);

/// Tests before training that save() can write: creates the folder, deletes .part files, reserves
/// space for `count` checkpoints, writes the metadata of `tensors`, and writes and syncs a few
/// bytes on every rank. Leaves none of it. Collective over `ranks`; rank 0's `count` is used.
/// Throws IoError on every rank.
void preflight_save(const std::filesystem::path& path, comm::MpiCommunicator& ranks,
                    const std::string& deck, const std::vector<LocalTensor>& tensors,
                    int count = 1);

/// Fills the pieces of `tensors` from the file, written at any layout, and returns its header.
/// The file must have exactly these tensors in the top-level groups that they name ("model",
/// "optimizer"), with these shapes and types; groups that no tensor names are not read.
///
/// Collective over `ranks`; the owners' pieces cover each tensor once, as for save(), and any rank
/// may have replicas. Throws, on every rank, DataError naming the file and the tensor when it is
/// truncated, foreign, newer than this program, of another model, or a checksum does not match;
/// IoError when it cannot be read.
Header load(const std::filesystem::path& path, comm::MpiCommunicator& ranks,
            const std::vector<LocalTensor>& tensors, device::Backend* memory = nullptr);

/// Every logical tensor of a checkpoint with this rank's part of it: weights under model/, what the
/// optimizer keeps under optimizer/m/ and optimizer/v/. Views of the live buffers.
std::vector<LocalTensor> checkpoint_tensors(const model::ParameterStore& parameters,
                                            const optim::Optimizer& optimizer);

/// The weights alone, for programs that do not train: this rank's whole local parameters. The first
/// data rank owns.
std::vector<LocalTensor> weight_tensors(const model::ParameterStore& parameters,
                                        bool first_data_rank);

}  // namespace trireme::checkpoint
