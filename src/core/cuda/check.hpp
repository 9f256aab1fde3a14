// Checked CUDA runtime calls, streams and events.
#pragma once

#include <cuda_runtime_api.h>

#include <utility>

#include "core/error.hpp"

namespace trireme::cuda {

/// Throws InternalError with CUDA's own text, the expression, its place, rank and host, unless
/// `code` is cudaSuccess.
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

}  // namespace trireme::cuda
