// Tests a GPU, or the host, for silent data corruption: the same work again and again, whose
// results must have the same bits.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "app.hpp"
#include "bench/commands.hpp"
#include "core/clock.hpp"
#include "core/files.hpp"
#include "core/system/process.hpp"
#include "device/backend.hpp"

namespace trireme::bench {
namespace {

constexpr const char* kBurnInProgram = "trireme-bench burn-in";
constexpr const char* kBurnInUsage =
    "Usage: trireme-bench burn-in [options]\n"
    "Repeats a GEMM, and fills, copies and reads nearly all memory of a GPU: all results must "
    "have\n"
    "the bits of the first ones. Exit code 77 where some have not.\n\n";

/// A buffer of known content.
struct Block {
  device::Buffer memory;
  Tensor tensor;
  std::uint64_t seed = 0;
  std::uint64_t sum = 0;  ///< its checksum when it was filled for the first time
};

class BurnIn {
 public:
  BurnIn(device::Backend& backend, DType dtype, std::int64_t size, std::size_t memory_bytes)
      : backend_(backend), size_(size), sum_(backend.allocate(sizeof(std::uint64_t), "checksum")) {
    const Shape square{size, size};
    for (Tensor* tensor : {&a_, &b_, &c_}) {
      buffers_.push_back(backend.allocate(static_cast<std::size_t>(size * size) * size_of(dtype),
                                          "matrices of the burn-in"));
      *tensor = {buffers_.back().get(), dtype, square};
    }
    fill(a_, 1);
    fill(b_, 2);
    gemm();
    expected_ = checksum(c_);
    // Two blocks at least, between which elements are copied.
    constexpr std::size_t kBlockBytes = std::size_t{1} << 28;
    const std::size_t bytes = std::min(kBlockBytes, memory_bytes / 2);
    const auto columns = static_cast<std::int64_t>(bytes / sizeof(float) / 256);
    for (std::size_t used = 0; used + bytes <= memory_bytes; used += bytes) {
      Block block{.memory = backend.allocate(bytes, "memory of the burn-in"),
                  .seed = blocks_.size() + 3};
      block.tensor = {block.memory.get(), DType::f32, {256, columns}};
      blocks_.push_back(std::move(block));
    }
    for (Block& block : blocks_) {
      fill(block.tensor, block.seed);
      block.sum = checksum(block.tensor);
    }
  }

  /// GEMMs, then one pass over the memory: blocks are read, copied to the next one, and filled
  /// again.
  void run() {
    constexpr int kGemms = 20;
    for (int i = 0; i < kGemms; ++i) {
      gemm();
      ++gemms_;
      wrong_gemms_ += checksum(c_) != expected_;
    }
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      Block& block = blocks_[i];
      Block& next = blocks_[(i + 1) % blocks_.size()];
      wrong_blocks_ += checksum(block.tensor) != block.sum;
      backend_.copy(next.tensor.data, block.tensor.data, block.tensor.bytes());
      wrong_blocks_ += checksum(next.tensor) != block.sum;
      fill(next.tensor, next.seed);
      wrong_blocks_ += checksum(next.tensor) != next.sum;
    }
    ++passes_;
  }

  std::int64_t wrong() const { return wrong_gemms_ + wrong_blocks_; }
  std::string summary() const {
    const double bytes =
        static_cast<double>(blocks_.size()) * static_cast<double>(blocks_[0].tensor.bytes());
    return fmt::format(
        "{} GEMMs of {} in {}, {} of them wrong; {} passes over {}, {} reads of {} wrong", gemms_,
        size_, name_of(c_.dtype), wrong_gemms_, passes_, human_bytes(bytes), wrong_blocks_,
        human_bytes(static_cast<double>(blocks_[0].tensor.bytes())));
  }

 private:
  void fill(const Tensor& tensor, std::uint64_t seed) {
    backend_.random_normal({.out = tensor, .seed = seed, .width = tensor.shape[1]});
  }
  void gemm() { backend_.gemm({.a = a_, .b = b_, .c = c_}); }
  std::uint64_t checksum(const Tensor& tensor) {
    std::uint64_t sum = 0;
    backend_.upload(sum_.get(), &sum, sizeof sum);
    backend_.checksum({.x = tensor, .out = static_cast<std::uint64_t*>(sum_.get())});
    backend_.download(&sum, sum_.get(), sizeof sum);
    return sum;
  }

  device::Backend& backend_;
  std::int64_t size_;
  device::Buffer sum_;
  std::vector<device::Buffer> buffers_;
  Tensor a_, b_, c_;
  std::uint64_t expected_ = 0;
  std::vector<Block> blocks_;
  std::int64_t gemms_ = 0, passes_ = 0, wrong_gemms_ = 0, wrong_blocks_ = 0;
};

}  // namespace

ExitCode run_burn_in(int argc, char** argv) {
  po::options_description options("Options");
  options.add_options()                                                                   //
      ("minutes", po::value<double>()->default_value(10.0)->value_name("M"), "how long")  //
      ("device", po::value<std::string>()->default_value("auto")->value_name("auto|host|cuda"),
       "what to test")  //
      ("gpu", po::value<int>()->default_value(0)->value_name("N"), "which of the visible GPUs");
  options.add(general_options());
  if (answers_help_or_version(argc, argv, kBurnInProgram, kBurnInUsage, options))
    return ExitCode::success;
  const po::variables_map values = parse_options(argc, argv, options);
  const std::string device = values["device"].as<std::string>();
  const double minutes = values["minutes"].as<double>();
  const int index = values["gpu"].as<int>();
  if (device != "auto" && device != "host" && device != "cuda")
    throw UsageError("--device {}: expected auto, host or cuda", device);
  if (!(minutes > 0.0)) throw UsageError("--minutes {}: expected more than 0", minutes);
  const std::vector<device::Gpu> gpus = device::visible_gpus();
  const bool cuda = device == "cuda" || (device == "auto" && !gpus.empty());
  if (cuda && (index < 0 || index >= std::ssize(gpus)))
    throw UsageError("--gpu {}: {} GPUs are visible{}", index, gpus.size(),
                     gpus.empty() ? " (" + device::why_no_gpu() + ")" : "");
  const auto backend = cuda ? device::make_cuda_backend(index, "", device::GemmChoice::heuristic)
                            : device::make_host_backend(device::threads_for_rank(1));
  constexpr double kShare = 0.85;  // of the GPU's free memory
  const device::Backend::Memory memory = backend->memory();
  const auto bytes =
      cuda ? static_cast<std::size_t>(kShare * static_cast<double>(memory.total - memory.used))
           : std::size_t{64} << 20;
  const std::string what =
      cuda ? fmt::format("GPU {} ({}, {})", index, gpus[index].name, gpus[index].bus_id)
           : std::string("the CPU");
  BurnIn test(*backend, cuda ? DType::bf16 : DType::f32, cuda ? 8192 : 512, bytes);
  const Stopwatch watch;
  do test.run();
  while (watch.seconds() < 60.0 * minutes);
  fmt::print("burn-in of {} on {}: {}, in {}\n", what, host_name(), test.summary(),
             human_duration(watch.seconds()));
  if (test.wrong() == 0) return ExitCode::success;
  throw Error(
      ExitCode::corrupted,
      fmt::format("silent data corruption on {} of {}: take it out of service", what, host_name()));
}

}  // namespace trireme::bench
