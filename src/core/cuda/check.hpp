// Checked calls of CUDA's runtime and of its driver, streams and events.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <utility>

#include "core/error.hpp"
#include "core/tensor.hpp"

namespace trireme::cuda {

/// Throws InternalError with CUDA's own text, the expression, its place, rank and host, unless
/// `code` is cudaSuccess. Where no memory is left, an Error (exit 1) that says what makes room:
/// graphs, libraries and kernels need some beyond what Trireme allocates.
void check(cudaError_t code, const char* expression, const char* file, int line);
#define TRIREME_CUDA(call) ::trireme::cuda::check((call), #call, __FILE__, __LINE__)
/// After every kernel launch: throws when it could not be launched.
#define TRIREME_CUDA_LAUNCHED(kernel) \
  ::trireme::cuda::check(cudaGetLastError(), "launch of " #kernel, __FILE__, __LINE__)

/// A separate stream, which does not wait for the default stream.
class Stream {
 public:
  /// `high_priority` lets its kernels start before those waiting on other streams.
  explicit Stream(bool high_priority = false);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

/// A point in a stream's work that others can wait for.
class Event {
 public:
  /// `timed` events can be given to milliseconds(); others are cheaper.
  explicit Event(bool timed = false);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  /// Marks everything that `stream` has been asked so far.
  void record(cudaStream_t stream);
  /// Makes what `stream` is asked from now on wait for the marked work; the host does not wait.
  void hold(cudaStream_t stream) const;
  /// Waits on the host for the marked work.
  void synchronize() const;
  /// Whether the marked work is done.
  bool done() const;
  /// Time between two timed events that are done.
  static float milliseconds(const Event& begin, const Event& end);

 private:
  cudaEvent_t event_ = nullptr;
};

// ---- functions of the CUDA driver, found when they are first needed: programs that link the
// driver would not start on machines without it

/// The address of the driver's function `name` as CUDA 12 defines it. Throws InternalError where
/// the driver is older.
void* driver_function(const char* name);

/// Throws InternalError with the driver's text unless `code` is CUDA_SUCCESS; `what` was asked.
void check_driver(CUresult code, const std::string& what);

// ---- flags in GPU memory, this GPU's or a peer's: neither a write nor a wait needs a kernel, and
// therefore a free SM

/// Enqueues a write of `epoch` to `flag` after all earlier work on `stream`.
void raise_flag(cudaStream_t stream, std::uint32_t* flag, std::uint32_t epoch);

/// Makes later work on `stream` wait until `flag` has reached `epoch`; see flag_reached().
void await_flag(cudaStream_t stream, const std::uint32_t* flag, std::uint32_t epoch);

/// Makes later work on `stream` wait until all parts are there.
void await_parts(cudaStream_t stream, const PartArrivals& arrivals);

}  // namespace trireme::cuda
