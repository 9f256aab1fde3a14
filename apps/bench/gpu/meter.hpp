// Timing of a GPU's operations with events, on operands that its cache does not hold.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bench/commands.hpp"
#include "device/backend.hpp"

namespace trireme::bench::gpu {

/// Times operations on GPU 0 against its ceilings, which are measured first: a GEMM of 8192 x
/// 8192 x 8192 and a copy of 1 GiB within its memory. An operation is called on several sets of
/// operands in turn, together several times the L2 cache, so that it reads them from memory.
class Meter final : public bench::Meter {
 public:
  explicit Meter(const Settings& settings);

  device::Backend& backend() override { return *backend_; }
  DType dtype() const override { return settings_.dtype; }
  const device::Gpu& gpu() const { return gpu_; }

  Tensor random(const Shape& shape, DType dtype) override;
  Tensor zeros(const Shape& shape, DType dtype) override;
  const std::int32_t* upload(const std::vector<std::int32_t>& values) override;

  /// Milliseconds of one call of what `make` enqueues on `backend`, one of GPU 0: the median of the
  /// settings' repeats, each of them milliseconds long.
  double time(device::Backend& backend, const Make& make);
  void gemm(const std::string& name, double flops, const Make& make, double count) override;
  void stream(const std::string& name, double bytes, const Make& make, double count) override;

  /// The ceilings, in GFLOP/s and GB/s (read and written).
  double gemm_rate() const { return gemm_rate_; }
  double copy_rate() const { return copy_rate_; }

  /// Prints the rows, as a table or as JSON.
  void print() const;

 private:
  void* take(std::size_t bytes);
  void* pattern(DType dtype);
  void measure(Row row, double work, double ceiling, const Make& make);

  Settings settings_;
  device::Gpu gpu_;
  std::unique_ptr<device::Backend> backend_;
  std::size_t rotation_bytes_ = 0;
  std::map<DType, device::Buffer> patterns_;  ///< random elements
  std::vector<device::Buffer> buffers_;
  std::size_t buffer_bytes_ = 0;
  double gemm_rate_ = 0.0;
  double copy_rate_ = 0.0;
  std::vector<Row> rows_;
};

/// The GEMMs of GPTs of several sizes: the kernel that cuBLASLt's heuristic puts first against
/// the fastest; and those with a GELU or a bias gradient, fused against in two kernels.
/// Throws Error (exit 1) when there is no GPU.
void measure_gemms(const Settings& settings);

/// Every operation of a training step with `dropout`, for several shapes of GPTs, against what the
/// GPU can do at most. Throws Error (exit 1) when there is no GPU.
void measure_kernels(const Settings& settings, double dropout);

}  // namespace trireme::bench::gpu
