// The subcommands of trireme-bench, and what they share: settings, timing, the table of results.
#pragma once

#include <boost/program_options.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "device/backend.hpp"

namespace trireme::bench {

// The subcommands of trireme-bench, one file each.

/// `trireme-bench burn-in`: repeated work whose results must not change.
ExitCode run_burn_in(int argc, char** argv);

/// `trireme-bench comm`: what ranks send each other, over MPI or NCCL.
ExitCode run_comm(int argc, char** argv);

/// `trireme-bench gemm`: the GEMMs of transformers, on the host against OpenBLAS's own sgemm, on
/// a GPU cuBLASLt's first choice against the fastest.
ExitCode run_gemm(int argc, char** argv);

/// `trireme-bench generate DECK`: prompts and tokens, in one sequence and in many.
ExitCode run_generate(int argc, char** argv);

/// `trireme-bench kernels`: every operation of a training step.
ExitCode run_kernels(int argc, char** argv);

/// `trireme-bench profile DECK`: the times of passes, collectives and copies that trireme-plan
/// reads.
ExitCode run_profile(int argc, char** argv);

/// `trireme-bench step DECK`: whole training steps, and memory against the plan.
ExitCode run_step(int argc, char** argv);

// Timing of operations against what the machine can do, and the table of results.

/// What every subcommand is told.
struct Settings {
  int threads = 1;
  int repeats = 7;
  bool json = false;
  bool cuda = false;          ///< measure the GPU, else the host
  DType dtype = DType::bf16;  ///< of the activations and weights on the GPU
  std::string only;           ///< names of the operations to measure contain this
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

/// Queues one operation.
using Call = std::function<void()>;
/// Gives an operation new operands, from the meter's tensors, and returns the call on them.
using Make = std::function<Call()>;

/// Times operations of a backend against what its device can do.
class Meter {
 public:
  explicit Meter(const Settings& settings) : settings_(settings) {}
  virtual ~Meter() = default;

  virtual device::Backend& backend() = 0;
  /// The type of the rows' activations and weights.
  virtual DType dtype() const = 0;

  /// Operands, which last until the operation has been measured: numbers between -1 and 1, zeros,
  /// `count` numbers from 0 to `below`, less 1, and given ones.
  virtual Tensor random(const Shape& shape, DType dtype) = 0;
  virtual Tensor zeros(const Shape& shape, DType dtype) = 0;
  const std::int32_t* ids(std::int64_t count, std::int64_t below);
  virtual const std::int32_t* upload(const std::vector<std::int32_t>& values) = 0;

  /// Whether the settings want the operation `name` measured.
  bool wants(const std::string& name);
  /// Throws UsageError that names all operations where the settings want none of them.
  void require_wanted() const;

  /// Adds a row for an operation that computes `flops`, if the settings want it; `count` calls of
  /// it make up a training step.
  virtual void gemm(const std::string& name, double flops, const Make& make, double count = 0) = 0;
  /// The same for an operation that moves `bytes` at least.
  virtual void stream(const std::string& name, double bytes, const Make& make,
                      double count = 0) = 0;

 protected:
  Settings settings_;

 private:
  std::vector<std::string> unwanted_;  ///< operations
  bool wants_some_ = false;
};

/// Times operations of the host. Between any two calls of an operation it times a reference, so
/// that other work on the machine slows both and their ratio stands: for GEMMs OpenBLAS's own
/// sgemm of 1024 x 1024 x 1024 on all the threads, for the rest the triad a = b + 1.5 c over 3 x 64
/// MiB.
class HostMeter final : public Meter {
 public:
  explicit HostMeter(const Settings& settings);
  ~HostMeter() override;

  device::Backend& backend() override { return *backend_; }
  DType dtype() const override { return DType::f32; }

  Tensor random(const Shape& shape, DType dtype) override;
  Tensor zeros(const Shape& shape, DType dtype) override;
  const std::int32_t* upload(const std::vector<std::int32_t>& values) override;

  void gemm(const std::string& name, double flops, const Make& make, double count) override;
  void stream(const std::string& name, double bytes, const Make& make, double count) override;

  const std::vector<Row>& rows() const { return rows_; }
  /// Median rates of the references over all rows: GFLOP/s and GB/s; 0 when never timed.
  double sgemm_rate() const;
  double triad_rate() const;

  /// Prints the rows, as a table or as JSON. Throws as require_wanted().
  void print() const;

 private:
  void* take(std::size_t bytes);
  double time_sgemm();
  double time_triad();
  void measure(Row row, double work, const Make& make,
               const std::function<double()>& reference_rate, std::vector<double>& rates);

  std::unique_ptr<device::Backend> backend_;
  std::vector<device::Buffer> buffers_;
  device::Buffer references_;
  std::vector<Row> rows_;
  std::vector<double> sgemm_rates_;
  std::vector<double> triad_rates_;
};

}  // namespace trireme::bench

namespace trireme::bench::gpu {

// Timing of a GPU's operations with events, on operands that its cache does not hold.

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

  /// Prints the rows, as a table or as JSON. Throws as require_wanted().
  void print() const;

 private:
  void* take(std::size_t bytes);
  void* pattern(DType dtype);
  void measure(Row row, double work, double ceiling, const Make& make);

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
