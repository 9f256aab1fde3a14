#include "core/cuda/check.hpp"

#include "core/system/process.hpp"

namespace trireme::cuda {

void check(cudaError_t code, const char* expression, const char* file, int line) {
  if (code == cudaSuccess) [[likely]]
    return;
  throw InternalError("{}:{}: {} failed on {}: {} ({})", file, line, expression, process_identity(),
                      cudaGetErrorString(code), cudaGetErrorName(code));
}

Stream::Stream(bool high_priority) {
  int least = 0, greatest = 0;
  TRIREME_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  TRIREME_CUDA(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking,
                                            high_priority ? greatest : least));
}

Stream::~Stream() { cudaStreamDestroy(stream_); }

Event::Event(bool timed) {
  TRIREME_CUDA(
      cudaEventCreateWithFlags(&event_, timed ? cudaEventDefault : cudaEventDisableTiming));
}

Event::~Event() { cudaEventDestroy(event_); }

void Event::record(cudaStream_t stream) { TRIREME_CUDA(cudaEventRecord(event_, stream)); }

void Event::hold(cudaStream_t stream) const {
  TRIREME_CUDA(cudaStreamWaitEvent(stream, event_, 0));
}

void Event::synchronize() const { TRIREME_CUDA(cudaEventSynchronize(event_)); }

bool Event::done() const {
  const cudaError_t code = cudaEventQuery(event_);
  if (code == cudaErrorNotReady) return false;
  TRIREME_CUDA(code);
  return true;
}

float Event::milliseconds(const Event& begin, const Event& end) {
  float result = 0.0f;
  TRIREME_CUDA(cudaEventElapsedTime(&result, begin.event_, end.event_));
  return result;
}

}  // namespace trireme::cuda
