#include "bench/gpu/meter.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "bench/kernel_rows.hpp"
#include "core/clock.hpp"
#include "core/tensor.hpp"

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
    : settings_(settings),
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
  if (!settings_.wants(row.name)) return;
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
