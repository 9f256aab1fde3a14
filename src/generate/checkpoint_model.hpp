// The model of a checkpoint, read in one process for inference.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "checkpoint/file.hpp"
#include "device/backend.hpp"
#include "grid/layout.hpp"
#include "model/parameters/store.hpp"
#include "model/spec.hpp"

namespace trireme::generate {

/// An open checkpoint with a GPT in it, written at any layout. Needs no MPI.
class CheckpointModel {
 public:
  /// Throws as checkpoint::Reader does.
  explicit CheckpointModel(const std::filesystem::path& path);

  const checkpoint::Header& header() const { return reader_.header(); }

  /// Rows of the word embedding. Throws DataError when the checkpoint holds no GPT.
  std::int64_t vocab() const;

  /// The type in which the checkpoint holds the weights.
  DType dtype() const;

  /// The weights of the rank at `place` in `layout`, in `backend`'s memory, rounded to `dtype`;
  /// their checksums are verified. Needs no other rank. Throws DataError naming the file and the
  /// tensor when one is missing, damaged or not of the shape that `spec` gives it.
  std::unique_ptr<model::ParameterStore> weights(const model::ModelSpec& spec,
                                                 device::Backend& backend,
                                                 const grid::Layout& layout,
                                                 const grid::Coordinates& place, DType dtype) const;
  /// All weights on one rank, in the type they are stored in.
  std::unique_ptr<model::ParameterStore> weights(const model::ModelSpec& spec,
                                                 device::Backend& backend) const;

 private:
  const checkpoint::TensorInfo& tensor(const std::string& name) const;

  std::filesystem::path path_;
  checkpoint::Reader reader_;
};

}  // namespace trireme::generate
