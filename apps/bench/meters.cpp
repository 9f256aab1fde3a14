// The settings of trireme-bench, and its timing of operations on the host and on a GPU.

#include <cblas.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "bench/commands.hpp"
#include "bench/kernel_rows.hpp"
#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/tensor.hpp"
#include "core/text.hpp"
#include "kernels/host/compute.hpp"

namespace trireme::bench {
namespace {

namespace po = boost::program_options;

constexpr std::int64_t kSide = 1024;               // of the reference GEMM
constexpr std::int64_t kTriad = 16 * 1024 * 1024;  // elements of each array of the triad

/// OpenMP's threads spin for a while after their work, and so do OpenBLAS's own (2^26 cycles), on
/// the cores that the others need next.
void let_threads_rest() { std::this_thread::sleep_for(std::chrono::milliseconds(60)); }

/// Whether to measure the GPU: as --device says, else whether there is one.
bool asks_for_cuda(const po::variables_map& values) {
  if (values.count("device") == 0) return !device::visible_gpus().empty();
  const std::string& name = values["device"].as<std::string>();
  if (name != "host" && name != "cuda")
    throw UsageError("--device {}: expected host or cuda", name);
  if (name == "cuda" && device::visible_gpus().empty())
    throw CodedError<ExitCode::failure>("--device cuda: {}", device::why_no_gpu());
  return name == "cuda";
}

DType type_named(const std::string& name) {
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32})
    if (name == name_of(dtype)) return dtype;
  throw UsageError("--type {}: expected bf16, fp16 or fp32", name);
}

}  // namespace

po::options_description settings_options() {
  po::options_description options("Options");
  options.add_options()  //
      ("device", po::value<std::string>()->value_name("WHERE"),
       "host or cuda; by default cuda where there is a GPU")  //
      ("threads", po::value<int>()->default_value(device::threads_for_rank(1))->value_name("N"),
       "threads that compute on the host")  //
      ("type", po::value<std::string>()->default_value("bf16")->value_name("TYPE"),
       "bf16, fp16 or fp32: what cuda computes with")  //
      ("only", po::value<std::string>()->default_value("")->value_name("TEXT"),
       "measure operations whose names contain this")  //
      ("repeats", po::value<int>()->default_value(7)->value_name("N"),
       "times that each operation is measured; the median counts")  //
      ("json", po::bool_switch(), "print JSON instead of a table");
  return options;
}

Settings read_settings(const po::variables_map& values) {
  const Settings settings{.threads = values["threads"].as<int>(),
                          .repeats = values["repeats"].as<int>(),
                          .json = values["json"].as<bool>(),
                          .cuda = asks_for_cuda(values),
                          .dtype = type_named(values["type"].as<std::string>()),
                          .only = values["only"].as<std::string>()};
  if (settings.threads < 1) throw UsageError("--threads {}: expected 1 or more", settings.threads);
  if (settings.repeats < 1) throw UsageError("--repeats {}: expected 1 or more", settings.repeats);
  return settings;
}

const std::int32_t* Meter::ids(std::int64_t count, std::int64_t below) {
  std::vector<std::int32_t> values(count);
  for (std::int64_t i = 0; i < count; ++i) values[i] = static_cast<std::int32_t>(i * 7919 % below);
  return upload(values);
}

bool Meter::wants(const std::string& name) {
  const bool wanted = name.find(settings_.only) != std::string::npos;
  wants_some_ |= wanted;
  if (!wanted) unwanted_.push_back(name);
  return wanted;
}

void Meter::require_wanted() const {
  if (!wants_some_)
    throw UsageError("--only {}: no operation's name contains this; there are {}", settings_.only,
                     fmt::join(unwanted_, ", "));
}

HostMeter::HostMeter(const Settings& settings)
    : bench::Meter(settings), backend_(device::make_host_backend(settings.threads)) {
  references_ = backend_->allocate(3 * kTriad * sizeof(float), "the references");
  float* values = static_cast<float*>(references_.get());
  std::fill(values, values + 3 * kTriad, 0.5f);
}

HostMeter::~HostMeter() = default;

void* HostMeter::take(std::size_t bytes) {
  buffers_.push_back(backend_->allocate(bytes, "a benchmark's tensor"));
  return buffers_.back().get();
}

Tensor HostMeter::zeros(const Shape& shape, DType dtype) {
  const Tensor tensor{take(static_cast<std::size_t>(shape.size()) * size_of(dtype)), dtype, shape};
  backend_->zero(tensor);
  return tensor;
}

Tensor HostMeter::random(const Shape& shape, DType dtype) {
  const Tensor tensor{take(static_cast<std::size_t>(shape.size()) * size_of(dtype)), dtype, shape};
  dispatch(dtype, [&](auto zero) {
    using T = decltype(zero);
    for (std::int64_t i = 0; i < tensor.size(); ++i)
      tensor.as<T>()[i] = static_cast<T>(((i * 2654435761) >> 8 & 1023) / 1024.0 - 0.4995);
  });
  return tensor;
}

const std::int32_t* HostMeter::upload(const std::vector<std::int32_t>& values) {
  auto* memory = static_cast<std::int32_t*>(take(values.size() * sizeof values[0]));
  std::ranges::copy(values, memory);
  return memory;
}

double HostMeter::time_sgemm() {
  const float* a = static_cast<const float*>(references_.get());
  float* c = static_cast<float*>(references_.get()) + 2 * kTriad;
  const auto multiply = [&] {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, kSide, kSide, kSide, 1.0f, a, kSide,
                a + kSide * kSide, kSide, 0.0f, c, kSide);
  };
  let_threads_rest();
  openblas_set_num_threads(settings_.threads);
  multiply();  // wakes OpenBLAS's threads
  constexpr int kCalls = 4;
  const Stopwatch watch;
  for (int i = 0; i < kCalls; ++i) multiply();
  const double seconds = watch.seconds() / kCalls;
  openblas_set_num_threads(1);
  return 2e-9 * kSide * kSide * kSide / seconds;
}

double HostMeter::time_triad() {
  float* a = static_cast<float*>(references_.get());
  const float* b = a + kTriad;
  const float* c = b + kTriad;
  const Stopwatch watch;
  kernels::host::parallel_blocks(kTriad, 16384, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) a[i] = b[i] + 1.5f * c[i];
  });
  return 1e-9 * 3 * kTriad * sizeof(float) / watch.seconds();
}

void HostMeter::measure(Row row, double work, const Make& make,
                        const std::function<double()>& reference_rate, std::vector<double>& rates) {
  if (!wants(row.name)) return;
  const Call call = make();
  call();
  reference_rate();
  std::vector<double> seconds, references;
  for (int i = 0; i < settings_.repeats; ++i) {
    let_threads_rest();
    call();  // wakes our threads
    const Stopwatch watch;
    call();
    seconds.push_back(watch.seconds());
    references.push_back(reference_rate());
  }
  row.ms = 1e3 * median(seconds);
  row.rate = 1e-9 * work / median(seconds);
  row.fraction = row.rate / median(references);
  rates.insert(rates.end(), references.begin(), references.end());
  rows_.push_back(std::move(row));
  buffers_.clear();
}

void HostMeter::gemm(const std::string& name, double flops, const Make& make, double count) {
  measure(
      {.name = name, .count = count, .compute_bound = true}, flops, make,
      [this] { return time_sgemm(); }, sgemm_rates_);
}

void HostMeter::stream(const std::string& name, double bytes, const Make& make, double count) {
  measure(
      {.name = name, .count = count}, bytes, make, [this] { return time_triad(); }, triad_rates_);
}

double HostMeter::sgemm_rate() const { return sgemm_rates_.empty() ? 0.0 : median(sgemm_rates_); }
double HostMeter::triad_rate() const { return triad_rates_.empty() ? 0.0 : median(triad_rates_); }

void HostMeter::print() const {
  require_wanted();
  if (settings_.json) {
    nlohmann::json rows = nlohmann::json::array();
    for (const Row& row : rows_)
      rows.push_back({{"name", row.name},
                      {"ms", row.ms},
                      {row.compute_bound ? "gflops" : "gbps", row.rate},
                      {"fraction", row.fraction},
                      {"calls_per_step", row.count}});
    const nlohmann::json all = {{"threads", settings_.threads},
                                {"sgemm_gflops", sgemm_rate()},
                                {"triad_gbps", triad_rate()},
                                {"rows", rows}};
    fmt::print("{}\n", all.dump(2));
    return;
  }
  fmt::print("{:<44} {:>9} {:>15} {:>9} {:>6} {:>10}\n", "operation", "ms", "rate", "of best",
             "calls", "ms a step");
  for (const Row& row : rows_)
    fmt::print("{:<44} {:>9.3f} {:>7.1f} {:<7} {:>7.1f} % {:>6.0f} {:>10.1f}\n", row.name, row.ms,
               row.rate, row.compute_bound ? "GFLOP/s" : "GB/s", 100 * row.fraction, row.count,
               row.ms * row.count);
  fmt::print("\nbest on {}, timed between the calls:", counted(settings_.threads, "thread"));
  if (sgemm_rate() > 0.0) fmt::print(" OpenBLAS sgemm {}^3 {:.1f} GFLOP/s;", kSide, sgemm_rate());
  if (triad_rate() > 0.0) fmt::print(" triad {:.1f} GB/s;", triad_rate());
  fmt::print(" medians of {}\n", settings_.repeats);
}

}  // namespace trireme::bench

namespace trireme::bench::gpu {
namespace {

constexpr std::int64_t kSide = 8192;                      // of the GEMM that is the ceiling
constexpr std::size_t kCopied = std::size_t{1} << 30;     // bytes of the copy that is the other
constexpr std::int64_t kPattern = std::int64_t{1} << 20;  // elements
constexpr std::size_t kCachesPerRotation = 4;
constexpr std::size_t kMaxSets = 16;
constexpr double kSampleMs = 3.0;
constexpr double kMaxCalls = 500;
constexpr std::size_t kWorkspace = std::size_t{2} << 30;  // for the largest row

device::Gpu first_gpu() {
  const std::vector<device::Gpu> gpus = device::visible_gpus();
  if (gpus.empty()) throw CodedError<ExitCode::failure>("--device cuda: {}", device::why_no_gpu());
  return gpus.front();
}

}  // namespace

Meter::Meter(const Settings& settings)
    : bench::Meter(settings),
      gpu_(first_gpu()),
      backend_(device::make_cuda_backend(0)),
      rotation_bytes_(kCachesPerRotation * gpu_.cache_bytes) {
  backend_->reserve_workspace(kWorkspace);
  const double copy_ms = time(*backend_, [this] {
    void* from = random({kCopied / 4}, DType::f32).data;
    void* to = take(kCopied);
    return [this, from, to] { backend_->copy(to, from, kCopied); };
  });
  copy_rate_ = 1e-6 * 2.0 * kCopied / copy_ms;
  const double gemm_ms = time(*backend_, [this] {
    const Shape square{kSide, kSide};
    const Tensor a = random(square, settings_.dtype), b = random(square, settings_.dtype);
    const Tensor c = zeros(square, settings_.dtype);
    return [this, a, b, c] { backend_->gemm({.a = a, .b = b, .c = c, .transpose_b = true}); };
  });
  gemm_rate_ = 1e-6 * 2.0 * kSide * kSide * kSide / gemm_ms;
}

void* Meter::take(std::size_t bytes) {
  buffers_.push_back(backend_->allocate(bytes, "a benchmark's tensor"));
  buffer_bytes_ += bytes;
  return buffers_.back().get();
}

Tensor Meter::zeros(const Shape& shape, DType dtype) {
  return {take(static_cast<std::size_t>(shape.size()) * size_of(dtype)), dtype, shape};
}

// Numbers are drawn once for each type, and repeated to fill a tensor.
void* Meter::pattern(DType dtype) {
  device::Buffer& memory = patterns_[dtype];
  if (memory) return memory.get();
  std::vector<float> values(kPattern);
  for (std::int64_t i = 0; i < kPattern; ++i)
    values[i] = static_cast<float>(2.0 * philox_uniform(1, 0, i) - 1.0);
  std::vector<std::byte> elements(kPattern * size_of(dtype));
  convert_from_float(values.data(), values.size(), dtype, elements.data());
  memory = backend_->allocate(elements.size(), "a benchmark's random numbers");
  backend_->upload(memory.get(), elements.data(), elements.size());
  return memory.get();
}

Tensor Meter::random(const Shape& shape, DType dtype) {
  const Tensor tensor = zeros(shape, dtype);
  const std::size_t piece = kPattern * size_of(dtype);
  for (std::size_t done = 0; done < tensor.bytes(); done += piece)
    backend_->copy(static_cast<std::byte*>(tensor.data) + done, pattern(dtype),
                   std::min(piece, tensor.bytes() - done));
  return tensor;
}

const std::int32_t* Meter::upload(const std::vector<std::int32_t>& values) {
  const std::size_t bytes = values.size() * sizeof(std::int32_t);
  void* memory = take(bytes);
  backend_->upload(memory, values.data(), bytes);
  return static_cast<const std::int32_t*>(memory);
}

double Meter::time(device::Backend& backend, const Make& make) {
  std::vector<Call> calls;
  while (calls.empty() || (buffer_bytes_ < rotation_bytes_ && calls.size() < kMaxSets))
    calls.push_back(make());
  backend_->synchronize();  // the operands are complete, for other backends, too
  const auto begin = backend.make_event(), end = backend.make_event();
  std::size_t next = 0;
  const auto sample = [&](int count) {
    begin->record();
    for (int i = 0; i < count; ++i) calls[next++ % calls.size()]();
    end->record();
    return end->milliseconds_since(*begin) / count;
  };
  const int sets = static_cast<int>(calls.size());
  sample(sets);  // loads code and chooses GEMMs
  const double estimate = std::max(sample(sets), 1e-3);
  const int count = static_cast<int>(std::clamp(std::ceil(kSampleMs / estimate), 1.0, kMaxCalls));
  std::vector<double> times;
  for (int i = 0; i < settings_.repeats; ++i) times.push_back(sample(count));
  calls.clear();
  buffers_.clear();
  buffer_bytes_ = 0;
  return median(times);
}

void Meter::measure(Row row, double work, double ceiling, const Make& make) {
  if (!wants(row.name)) return;
  row.ms = time(*backend_, make);
  row.rate = 1e-6 * work / row.ms;
  row.fraction = row.rate / ceiling;
  rows_.push_back(std::move(row));
}

void Meter::gemm(const std::string& name, double flops, const Make& make, double count) {
  measure({.name = name, .count = count, .compute_bound = true}, flops, gemm_rate_, make);
}

void Meter::stream(const std::string& name, double bytes, const Make& make, double count) {
  measure({.name = name, .count = count}, bytes, copy_rate_, make);
}

void Meter::print() const {
  require_wanted();
  if (settings_.json) {
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (const Row& row : rows_)
      rows.push_back({{"name", row.name},
                      {"ms", row.ms},
                      {row.compute_bound ? "gflops" : "gbps", row.rate},
                      {"fraction", row.fraction}});
    const nlohmann::ordered_json all = {{"gpu", gpu_.name},
                                        {"type", name_of(settings_.dtype)},
                                        {"gemm_gflops", gemm_rate_},
                                        {"copy_gbps", copy_rate_},
                                        {"rows", rows}};
    fmt::print("{}\n", all.dump(2));
    return;
  }
  fmt::print("{:<44} {:>10} {:>16} {:>9}\n", "operation", "us", "rate", "of best");
  for (const Row& row : rows_)
    fmt::print("{:<44} {:>10.1f} {:>8.2f} {:<7} {:>7.1f} %\n", row.name, 1e3 * row.ms,
               1e-3 * row.rate, row.compute_bound ? "TFLOP/s" : "TB/s", 100 * row.fraction);
  fmt::print("\nbest on {}: GEMM of {}^3 in {} {:.0f} TFLOP/s; copy {:.2f} TB/s; medians of {}\n",
             gpu_.name, kSide, name_of(settings_.dtype), 1e-3 * gemm_rate_, 1e-3 * copy_rate_,
             settings_.repeats);
}

void measure_kernels(const Settings& settings, double dropout) {
  Meter meter(settings);
  measure_models(meter, dropout, settings.dtype == DType::bf16 ? meter.gpu().capability : 0);
  meter.print();
}

}  // namespace trireme::bench::gpu
