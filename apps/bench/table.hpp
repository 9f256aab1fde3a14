// Timing of operations against what the machine can do, and the table of results.
#pragma once

#include <boost/program_options.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/backend.hpp"

namespace trireme::bench {

/// What every subcommand is told.
struct Settings {
  int threads = 1;
  int repeats = 7;
  bool json = false;
  bool cuda = false;          ///< measure the GPU, else the host
  DType dtype = DType::bf16;  ///< of the activations and weights on the GPU
  std::string only;           ///< names of the operations to measure contain this

  bool wants(const std::string& name) const { return name.find(only) != std::string::npos; }
};

/// The options for Settings.
boost::program_options::options_description settings_options();

/// Reads Settings from parsed options; throws UsageError for what they cannot be.
Settings read_settings(const boost::program_options::variables_map& values);

/// One measured operation.
struct Row {
  std::string name;
  double ms = 0.0;        ///< median of one call
  double rate = 0.0;      ///< GFLOP/s of a GEMM, GB/s of anything else
  double fraction = 0.0;  ///< of the reference rate, measured between the calls
  double count = 0.0;     ///< calls in a training step, where that is known
  bool compute_bound = false;
};

/// Times operations of the host. Between any two calls of an operation it times a reference, so
/// that other work on the machine slows both and their ratio stands: for GEMMs OpenBLAS's own
/// sgemm of 1024 x 1024 x 1024 on all the threads, for the rest the triad a = b + 1.5 c over 3 x 64
/// MiB.
class Meter {
 public:
  explicit Meter(const Settings& settings);
  ~Meter();

  device::Backend& backend() { return *backend_; }

  /// A tensor of small numbers other than zero, kept as long as the meter.
  Tensor tensor(const Shape& shape, DType dtype = DType::f32);
  /// Forgets all tensors.
  void clear() { buffers_.clear(); }

  /// Measures a GEMM of `flops`; `count` calls of it make up a training step.
  void gemm(const std::string& name, double flops, double count, const std::function<void()>& call);
  /// Measures an operation that moves `bytes` at least.
  void stream(const std::string& name, double bytes, double count,
              const std::function<void()>& call);

  const std::vector<Row>& rows() const { return rows_; }
  /// Median rates of the references over all rows: GFLOP/s and GB/s; 0 when never timed.
  double sgemm_rate() const;
  double triad_rate() const;

  /// Prints the rows, as a table or as JSON.
  void print() const;

 private:
  double time_sgemm();
  double time_triad();
  void measure(Row row, double work, const std::function<void()>& call,
               const std::function<double()>& reference_rate, std::vector<double>& rates);

  Settings settings_;
  std::unique_ptr<device::Backend> backend_;
  std::vector<device::Buffer> buffers_;
  device::Buffer references_;
  std::vector<Row> rows_;
  std::vector<double> sgemm_rates_;
  std::vector<double> triad_rates_;
};

}  // namespace trireme::bench
