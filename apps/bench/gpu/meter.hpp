// Timing of a GPU's operations with events, on operands that its cache does not hold.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bench/table.hpp"
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

  /// Milliseconds of one call: the median of the settings' repeats, each of them milliseconds long.
  double time(const Make& make);
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
  std::unique_ptr<device::Backend> backend_;
  device::Gpu gpu_;
  std::size_t rotation_bytes_ = 0;
  std::map<DType, device::Buffer> patterns_;  ///< random elements
  std::vector<device::Buffer> buffers_;
  std::size_t buffer_bytes_ = 0;
  double gemm_rate_ = 0.0;
  double copy_rate_ = 0.0;
  std::vector<Row> rows_;
};

}  // namespace trireme::bench::gpu
