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

/// A message or collective under way. Its buffer must not be touched until wait() returned.
class Request {
 public:
  virtual ~Request() = default;
  /// Over host memory, blocks until the operation is done. Over a GPU's, makes the work that the
  /// compute stream is asked from now on wait for it; the host goes on. A second call does nothing.
  virtual void wait() = 0;
};

/// What an operation that is already done returns.
class FinishedRequest final : public Request {
 public:
  void wait() override {}
};

/// Memory that the ranks of a group may reach directly, while this lives.
class SharedMemory {
 public:
  virtual ~SharedMemory() = default;
};

/// A group of ranks. Every method but send and receive is collective over the group: all its ranks
/// call it, in the same order, with equal counts and types. Buffers lie in the memory of the
/// backend that the implementation serves: host memory for MPI, a GPU's for NCCL, whose operations
/// take their place among what the compute stream is asked. Failures throw CommunicationError
/// (comm/watchdog.hpp) with the library's text, the group's name, the rank and the host.
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
  /// Starts sending `bytes` to `peer`. Messages of one tag between two ranks keep their order.
  virtual std::unique_ptr<Request> send(const void* data, std::size_t bytes, int peer, int tag) = 0;
  /// Starts receiving `bytes` from `peer`.
  virtual std::unique_ptr<Request> receive(void* data, std::size_t bytes, int peer, int tag) = 0;
  /// Returns when every rank has called it, and the work it had queued before is done.
  virtual void barrier() = 0;

  /// Says that buffers of collectives will lie in [base, base + bytes), memory which every rank has
  /// taken alike, and uses alike: the buffers of one operation lie at the same offset everywhere.
  /// Ranks that reach each other's memory then exchange without copies. Destroying the result ends
  /// that and is collective, too; it must be gone before the memory is freed and before the group.
  /// Null where nothing is gained.
  virtual std::unique_ptr<SharedMemory> share(void* base, std::size_t bytes) {
    (void)base, (void)bytes;
    return nullptr;
  }

  /// Lends the group scratch memory at `base`, part of what is shared and alike on every rank: what
  /// start_reduce_scatter() and start_all_reduce() are asked, of at most `bytes`, may go through it
  /// and then takes less from the work beside it. Until the sharing ends.
  virtual void lend(void* base, std::size_t bytes) { (void)base, (void)bytes; }

  /// all_reduce, reduce_scatter and all_gather beside the work that is queued after them, until
  /// wait(). Over host memory they are done when these return.
  virtual std::unique_ptr<Request> start_all_reduce(void* data, std::size_t count, DType dtype,
                                                    Reduce op) {
    all_reduce(data, count, dtype, op);
    return std::make_unique<FinishedRequest>();
  }
  virtual std::unique_ptr<Request> start_reduce_scatter(void* data, std::size_t count,
                                                        DType dtype) {
    reduce_scatter(data, count, dtype);
    return std::make_unique<FinishedRequest>();
  }
  virtual std::unique_ptr<Request> start_all_gather(void* data, std::size_t count, DType dtype) {
    all_gather(data, count, dtype);
    return std::make_unique<FinishedRequest>();
  }

  /// The sum, maximum or minimum of one value of the host over the group.
  virtual double all_reduce(double value, Reduce op) {
    all_reduce(&value, 1, DType::f64, op);
    return value;
  }
};

}  // namespace trireme::comm
