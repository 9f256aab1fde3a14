#include "core/cuda/check.hpp"

#include "core/system/process.hpp"

namespace trireme::cuda {

void check(cudaError_t code, const char* expression, const char* file, int line) {
  if (code == cudaSuccess) [[likely]]
    return;
  if (code == cudaErrorMemoryAllocation)
    throw CodedError<ExitCode::failure>(
        "no memory is left on the GPU of {} for {}: use a smaller batch.micro or recompute "
        "(--plan prints what a run needs), or end other programs on this GPU",
        process_identity(), expression);
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

void* driver_function(const char* name) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  TRIREME_CUDA(cudaGetDriverEntryPointByVersion(name, &address, 12000, cudaEnableDefault, &found));
#else
  TRIREME_CUDA(cudaGetDriverEntryPoint(name, &address, cudaEnableDefault, &found));
#endif
  TRIREME_CHECK(found == cudaDriverEntryPointSuccess,
                "the driver has no {}: it is older than CUDA 12", name);
  return address;
}

void check_driver(CUresult code, const std::string& what) {
  if (code == CUDA_SUCCESS) return;
  static const auto text_of =
      reinterpret_cast<decltype(&cuGetErrorString)>(driver_function("cuGetErrorString"));
  const char* text = nullptr;
  text_of(code, &text);
  throw InternalError("{}: {} (error {} of the CUDA driver)", what, text ? text : "unknown error",
                      static_cast<int>(code));
}

namespace {

CUdeviceptr address_of(const std::uint32_t* flag) { return reinterpret_cast<CUdeviceptr>(flag); }

}  // namespace

void raise_flag(cudaStream_t stream, std::uint32_t* flag, std::uint32_t epoch) {
  static const auto write =
      reinterpret_cast<decltype(&cuStreamWriteValue32)>(driver_function("cuStreamWriteValue32"));
  check_driver(write(stream, address_of(flag), epoch, CU_STREAM_WRITE_VALUE_DEFAULT),
               "writing a flag from a stream");
}

void await_flag(cudaStream_t stream, const std::uint32_t* flag, std::uint32_t epoch) {
  static const auto wait =
      reinterpret_cast<decltype(&cuStreamWaitValue32)>(driver_function("cuStreamWaitValue32"));
  check_driver(wait(stream, address_of(flag), epoch, CU_STREAM_WAIT_VALUE_GEQ),
               "waiting for a flag in a stream");
}

void await_parts(cudaStream_t stream, const PartArrivals& arrivals) {
  if (!arrivals) return;
  for (int part = 0; part < arrivals.parts; ++part)
    if (part != arrivals.own) await_flag(stream, arrivals.flags + part, arrivals.epoch);
}

}  // namespace trireme::cuda
