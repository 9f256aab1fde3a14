// ZeRO-2: each data rank keeps the gradient of what it owns alone.
#pragma once

#include <memory>
#include <vector>

#include "comm/communicator.hpp"
#include "device/backend.hpp"
#include "model/parameters/buffer.hpp"
#include "optim/sharding/shards.hpp"

namespace trireme::optim {

/// Sums the gradients of layers' matrices over the data ranks each time that a pass has added to
/// them in their buffer, and keeps what this rank owns. What was kept so far is in the buffer when
/// a pass adds to it: over a step each sum has the terms, and the type, that it has where gradients
/// are whole, but another order of terms when there are several micro-batches. Collective over the
/// data ranks, which make the same calls.
class LayerGradientScatter {
 public:
  /// All must outlive this. With `overlap`, sums run beside the passes that come next.
  LayerGradientScatter(device::Backend& backend, const model::Placement& placement,
                       const model::ParameterBuffer& gradients, comm::Communicator& data,
                       const Shards& shards, bool overlap);

  /// Before a pass adds to the gradients of `matrices`, those of one layer.
  void open(const Range& matrices);
  /// After that.
  void close(const Range& matrices);
  /// Waits until everything that was closed is kept.
  void finish();

 private:
  /// What is in a layer's buffer.
  struct Content {
    Range matrices;
    std::vector<std::unique_ptr<comm::Request>> sums;
  };

  /// The buffer's content once more passes have come to it.
  Content& content_of(const Range& matrices);
  /// Waits for the sums in a buffer and keeps them.
  void keep(Content& content);
  /// Copies this rank's parts of the layer between its buffer and where they are kept.
  enum class Way { to_buffer, from_buffer };
  void copy_own(const Range& matrices, Way way) const;

  device::Backend& backend_;
  const model::Placement& placement_;
  const model::ParameterBuffer& gradients_;
  comm::Communicator& data_;
  const Shards& shards_;
  bool overlap_;
  std::vector<Content> contents_;  ///< of each buffer
};

}  // namespace trireme::optim
