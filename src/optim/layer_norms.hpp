// Norms of each layer's gradient, update and weights.
#pragma once

#include <vector>

#include "comm/communicator.hpp"
#include "optim/sharding/shards.hpp"

namespace trireme::optim {

/// L2 norms over all parameters of each layer, then of the first stage (embeddings) and of the last
/// one (final norm, output projection), each logical element counted once: of the gradient before
/// clipping, of the change of the master weights, and of these after it.
struct LayerNorms {
  std::vector<double> gradient, update, parameters;
};

/// Computes them around an update, in fp64.
class LayerNormSums {
 public:
  /// All must outlive this; `table` is the whole model's.
  LayerNormSums(device::Backend& backend, const OwnedShard& shard,
                const std::vector<model::Parameter>& table, comm::Communicator& world);
  /// Bytes that this allocates on a rank with `shards`, in a model of `layers`.
  static std::size_t planned_bytes(const Shards& shards, int layers, const Precision& precision);

  /// Before the update: adds the gradients.
  void begin();
  /// Before and after `owned` is updated.
  void before(const OwnedRange& owned);
  void after(const OwnedRange& owned);
  /// The norms, with `loss_scale` taken out of the gradient's. Collective over the world; the same
  /// everywhere.
  LayerNorms finish(double loss_scale);

 private:
  enum Kind { kGradient, kUpdate, kParameters, kKinds };
  /// Adds the squares of `x`, the elements of `part`, which the rank counts if it is their primary.
  void add(Kind kind, const OwnedPart& part, const Tensor& x);
  /// Calls use(part, place) for the parts of `owned`; place is the first element's in the range.
  template <typename Use>
  void for_parts(const OwnedRange& owned, const Use& use) const;

  device::Backend& backend_;
  const OwnedShard& shard_;
  comm::Communicator& world_;
  std::int64_t layers_;
  device::Buffer memory_;
  Tensor squares_;  ///< [kKinds, layers + 2] f64
  Tensor before_;   ///< the master weights of a range before its update
};

}  // namespace trireme::optim
