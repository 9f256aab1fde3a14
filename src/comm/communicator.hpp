// Collectives and point-to-point messages between the ranks of one axis of the layout.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "core/dtype.hpp"

namespace trireme::comm {

/// How values are combined.
enum class Reduce { sum, max, min };

/// A send or receive under way. Its buffer must stay valid until wait() returned.
class Request {
 public:
  virtual ~Request() = default;
  /// Blocks until the message has been sent or received; a second call does nothing.
  virtual void wait() = 0;
};

/// A group of ranks. Every method but send and receive is collective over the group: all its ranks
/// call it, in the same order, with equal counts and types. Buffers lie in the memory of the
/// backend that the implementation serves (host memory for MPI). Failures throw InternalError with
/// the library's text, the group's name, the rank and the host.
class Communicator {
 public:
  virtual ~Communicator() = default;

  /// The group's name, for messages.
  virtual const std::string& name() const = 0;
  /// This rank's number in the group, 0 .. size() - 1.
  virtual int rank() const = 0;
  /// The number of ranks.
  virtual int size() const = 0;

  /// Combines `count` elements in place; every rank gets the same bits.
  virtual void all_reduce(void* data, std::size_t count, DType dtype, Reduce op) = 0;
  /// Sums `data`, size() * count elements, and leaves the sum of part rank() in that part of
  /// `data`; the other parts are left undefined.
  virtual void reduce_scatter(void* data, std::size_t count, DType dtype) = 0;
  /// Gathers part rank() of `data` (count elements) from every rank into all size() parts, in
  /// place.
  virtual void all_gather(void* data, std::size_t count, DType dtype) = 0;
  /// Copies `bytes` of `root` to every rank.
  virtual void broadcast(void* data, std::size_t bytes, int root) = 0;
  /// Starts sending `bytes` to `peer`.
  virtual std::unique_ptr<Request> send(const void* data, std::size_t bytes, int peer, int tag) = 0;
  /// Starts receiving `bytes` from `peer`.
  virtual std::unique_ptr<Request> receive(void* data, std::size_t bytes, int peer, int tag) = 0;
  /// Returns when every rank has called it.
  virtual void barrier() = 0;

  /// The sum, maximum or minimum of one value over the group.
  double all_reduce(double value, Reduce op) {
    all_reduce(&value, 1, DType::f64, op);
    return value;
  }
};

}  // namespace trireme::comm
