// GPU memory and work for the tests of device communicators.
#pragma once

#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "core/cuda/check.hpp"
#include "core/tensor.hpp"

namespace trireme::comm {

/// `values` as elements of `dtype`.
inline std::vector<std::byte> as_elements(const std::vector<double>& values, DType dtype) {
  std::vector<std::byte> elements(values.size() * size_of(dtype));
  if (dtype == DType::f64) {
    std::memcpy(elements.data(), values.data(), elements.size());
  } else {
    const std::vector<float> floats(values.begin(), values.end());
    convert_from_float(floats.data(), floats.size(), dtype, elements.data());
  }
  return elements;
}

/// Elements in GPU memory. Copies to and from it run on a stream, among its other work.
class DeviceArray {
 public:
  DeviceArray(const std::vector<double>& values, DType dtype, cudaStream_t stream)
      : dtype_(dtype), count_(values.size()), stream_(stream), host_(as_elements(values, dtype)) {
    constexpr std::size_t kGranule = std::size_t{2} << 20;  // what CUDA IPC shares at least
    TRIREME_CUDA(cudaMalloc(&data_, (host_.size() / kGranule + 1) * kGranule));
    fill(values);
  }
  ~DeviceArray() {
    cudaStreamSynchronize(stream_);
    cudaFree(data_);
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  void* data(std::size_t first = 0) const {
    return static_cast<std::byte*>(data_) + first * size_of(dtype_);
  }

  /// Writes other values, after what the stream was asked before.
  void fill(const std::vector<double>& values) {
    TRIREME_CUDA(cudaStreamSynchronize(stream_));  // host_ is free again
    host_ = as_elements(values, dtype_);
    copy_in();
  }
  /// Writes the values once more, after what the stream was asked before; the host does not wait.
  void copy_in() {
    TRIREME_CUDA(
        cudaMemcpyAsync(data_, host_.data(), host_.size(), cudaMemcpyHostToDevice, stream_));
  }

  /// The raw elements, after what the stream was asked before.
  std::vector<std::byte> bytes() const {
    std::vector<std::byte> elements(count_ * size_of(dtype_));
    TRIREME_CUDA(
        cudaMemcpyAsync(elements.data(), data_, elements.size(), cudaMemcpyDeviceToHost, stream_));
    TRIREME_CUDA(cudaStreamSynchronize(stream_));
    return elements;
  }
  std::vector<double> read() const {
    const std::vector<std::byte> elements = bytes();
    std::vector<double> values(count_);
    if (dtype_ == DType::f64) {
      std::memcpy(values.data(), elements.data(), elements.size());
      return values;
    }
    std::vector<float> floats(count_);
    convert_to_float(elements.data(), count_, dtype_, floats.data());
    return {floats.begin(), floats.end()};
  }

 private:
  DType dtype_;
  std::size_t count_;
  cudaStream_t stream_;
  std::vector<std::byte> host_;
  void* data_ = nullptr;
};

/// Makes `stream` call `function` on a thread of the host, in its turn.
inline void call_in_stream(cudaStream_t stream, std::function<void()> function) {
  auto* owned = new std::function<void()>(std::move(function));
  TRIREME_CUDA(cudaLaunchHostFunc(
      stream,
      [](void* argument) {
        const std::unique_ptr<std::function<void()>> call(
            static_cast<std::function<void()>*>(argument));
        (*call)();
      },
      owned));
}

/// Keeps `stream` busy for a tenth of a second.
inline void delay_stream(cudaStream_t stream) {
  call_in_stream(stream, [] { std::this_thread::sleep_for(std::chrono::milliseconds(100)); });
}

}  // namespace trireme::comm
