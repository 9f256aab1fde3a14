// One operation on two backends: the same code makes its tensors and runs it on the GPU in a
// storage type, on the host in double, which tells what is right, and on the host in fp32, which
// tells what precision can be asked for.
#pragma once

#include <deque>
#include <functional>

#include "device_testing.hpp"

namespace trireme::kernels {

/// A backend to run an operation on, with tensors of random or given values in its memory.
class Workbench {
 public:
  /// On the GPU when `on_gpu`. Operations compute in `compute`; random values are those that
  /// `storage` can hold, so that all benches of a test work on the same numbers.
  Workbench(bool on_gpu, DType compute, DType storage)
      : backend_(on_gpu ? gpu() : host()), on_gpu_(on_gpu), compute_(compute), storage_(storage) {}

  device::Backend& backend() { return backend_; }

  /// A tensor of the compute type with normal random numbers, fixed by `seed`.
  Tensor random(Shape shape, std::uint64_t seed, double deviation = 1.0) {
    return given(shape, random_values(shape.size(), seed, storage_, deviation));
  }
  /// A tensor of the compute type, or of its accumulation type, with `values`.
  Tensor given(Shape shape, const std::vector<double>& values) {
    return make(shape, compute_, values);
  }
  Tensor wide_given(Shape shape, const std::vector<double>& values) {
    return make(shape, accumulation_type(compute_), values);
  }
  /// A tensor of the accumulation type with random numbers of fp32.
  Tensor wide_random(Shape shape, std::uint64_t seed, double deviation = 1.0) {
    return wide_given(shape, random_values(shape.size(), seed, DType::f32, deviation));
  }
  /// Tensors that the operation must overwrite.
  Tensor poisoned(Shape shape) { return given(shape, nothing(shape)); }
  Tensor wide_poisoned(Shape shape) { return wide_given(shape, nothing(shape)); }
  /// One number in fp32, and in double.
  Tensor number_f32(float value) { return make({1}, DType::f32, {value}); }
  Tensor number(double value) { return make({1}, DType::f64, {value}); }
  /// Integers in the backend's memory.
  const std::int32_t* integers(const std::vector<std::int32_t>& values) {
    return static_cast<const std::int32_t*>(copy_in(values));
  }
  const std::uint64_t* index(std::uint64_t value) {
    return static_cast<const std::uint64_t*>(copy_in(std::vector<std::uint64_t>{value}));
  }
  const std::int64_t* bounds(const std::vector<std::int64_t>& values) {
    return static_cast<const std::int64_t*>(copy_in(values));
  }

  /// Expects that nothing was written around the tensors, and returns the elements of one.
  std::vector<double> read(const Tensor& tensor) {
    std::vector<double> values;
    if (on_gpu_) {
      for (const OnGpu& owned : on_gpu_tensors_)
        if (owned.tensor().data == tensor.data) values = owned.read();
    } else if (tensor.dtype == DType::f64) {
      values.assign(tensor.as<double>(), tensor.as<double>() + tensor.size());
    } else {
      values.assign(tensor.as<float>(), tensor.as<float>() + tensor.size());
    }
    EXPECT_EQ(static_cast<std::int64_t>(values.size()), tensor.size());
    return values;
  }

 private:
  static device::Backend& host() {
    static const std::unique_ptr<device::Backend> backend = device::make_host_backend(4);
    return *backend;
  }
  static std::vector<double> nothing(const Shape& shape) {
    return std::vector<double>(shape.size(), std::numeric_limits<double>::quiet_NaN());
  }

  Tensor make(Shape shape, DType dtype, const std::vector<double>& values) {
    if (on_gpu_) return on_gpu_tensors_.emplace_back(shape, dtype, values).tensor();
    if (dtype == DType::f64) return {const_cast<void*>(copy_in(values)), dtype, shape};
    return {const_cast<void*>(copy_in(std::vector<float>(values.begin(), values.end()))), dtype,
            shape};
  }

  template <typename T>
  const void* copy_in(const std::vector<T>& values) {
    memory_.push_back(backend_.allocate(values.size() * sizeof(T), "a test"));
    backend_.upload(memory_.back().get(), values.data(), values.size() * sizeof(T));
    return memory_.back().get();
  }

  device::Backend& backend_;
  bool on_gpu_;
  DType compute_, storage_;
  std::deque<OnGpu> on_gpu_tensors_;
  std::vector<device::Buffer> memory_;
};

/// What an operation wrote.
struct Output {
  std::string name;
  Tensor tensor;
};

/// Makes an operation's tensors on a bench and runs it.
using Operation = std::function<std::vector<Output>(Workbench&)>;

/// Expects the outputs of `operation` on the GPU, with elements of `storage`, to be as near to
/// those of the host in double as twice what the host in fp32, rounded to the types of storage, is;
/// and to be the same bits the second time. `floor`: see expect_as_near.
inline void expect_as_on_host(const std::string& title, DType storage, const Operation& operation,
                              double floor = 2e-6) {
  const auto run = [&](bool on_gpu, DType compute) {
    Workbench bench(on_gpu, compute, storage);
    std::vector<std::pair<Output, std::vector<double>>> results;
    for (const Output& output : operation(bench))
      results.emplace_back(output, bench.read(output.tensor));
    return results;
  };
  const auto actual = run(true, storage), again = run(true, storage);
  const auto plain = run(false, DType::f32), exact = run(false, DType::f64);
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const auto& [output, values] = actual[i];
    const std::string name = title + ", " + std::string(name_of(storage)) + ": " + output.name;
    expect_as_near(name, values, rounded(plain[i].second, output.tensor.dtype), exact[i].second,
                   floor);
    EXPECT_EQ(std::memcmp(values.data(), again[i].second.data(), values.size() * sizeof(double)), 0)
        << name << ": other bits the second time";
  }
}

/// The three types that CUDA kernels compute in.
inline constexpr DType kStorageTypes[] = {DType::f32, DType::bf16, DType::f16};

}  // namespace trireme::kernels
