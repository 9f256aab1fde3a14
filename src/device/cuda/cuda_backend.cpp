// The CUDA backend.

#include <cuda_runtime_api.h>
#include <nvtx3/nvToolsExt.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "core/cuda/check.hpp"
#include "core/files.hpp"
#include "core/system/process.hpp"
#include "device/backend.hpp"
#include "device/cuda/page_locked.hpp"
#include "device/timers.hpp"
#include "kernels/cuda/decoding/pass.hpp"
#include "kernels/cuda/gemm/gemm_runner.hpp"
#include "kernels/cuda/workspace.hpp"

namespace trireme::device {

std::vector<Gpu> visible_gpus() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) return {};
  std::vector<Gpu> gpus;
  for (int index = 0; index < count; ++index) {
    cudaDeviceProp properties;
    if (cudaGetDeviceProperties(&properties, index) != cudaSuccess) return {};
    char bus_id[32] = {};
    if (cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, index) != cudaSuccess) return {};
    gpus.push_back({.name = properties.name,
                    .capability = 10 * properties.major + properties.minor,
                    .memory_bytes = properties.totalGlobalMem,
                    .cache_bytes = static_cast<std::size_t>(properties.l2CacheSize),
                    .bus_id = bus_id});
  }
  return gpus;
}

std::string why_no_gpu() {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code == cudaSuccess && count == 0) return "CUDA sees no GPU";
  // Of no driver at all CUDA says that it is too old.
  int driver = 0;
  if (cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0)
    return "this machine has no NVIDIA driver";
  return fmt::format("CUDA says: {}", cudaGetErrorString(code));
}

namespace {

namespace kernels_on_gpu = kernels::cuda;

constexpr int kOldestCapability = 80;
/// What cudaMalloc() cuts smaller allocations from. Ours are whole ones, since memory that other
/// processes map (CUDA IPC) is mapped in whole ones, with whatever else lies there.
constexpr std::size_t kGranule = std::size_t{2} << 20;

/// Selects the GPU, after making sure that it is there and can run the kernels.
void use_gpu(int index) {
  const std::vector<Gpu> gpus = visible_gpus();
  if (gpus.empty()) throw CodedError<ExitCode::failure>("run.device = cuda: {}", why_no_gpu());
  if (index >= static_cast<int>(gpus.size()))
    throw CodedError<ExitCode::failure>(
        "run.device = cuda: {} ranks run on {}, which has {} GPU{}; start at most {} there",
        index + 1, host_name(), gpus.size(), gpus.size() == 1 ? "" : "s", gpus.size());
  const Gpu& gpu = gpus[index];
  if (gpu.capability < kOldestCapability)
    throw CodedError<ExitCode::failure>(
        "run.device = cuda: GPU {} of {}, {}, has compute capability {}.{}; Trireme needs 8.0 or "
        "newer",
        index, host_name(), gpu.name, gpu.capability / 10, gpu.capability % 10);
  TRIREME_CUDA(cudaSetDevice(index));
}

/// An operation's range in NVIDIA's timeline for the length of a scope.
class OperationRange {
 public:
  explicit OperationRange(const char* name) { nvtxRangePushA(name); }
  ~OperationRange() { nvtxRangePop(); }
};

/// Shows the program's ranges there as well.
class NvtxRanges final : public RangeListener {
 public:
  void begin(const RangeInfo& range) override { nvtxRangePushA(range.name); }
  void end() override { nvtxRangePop(); }
};

/// An event in the stream, which the host does not wait for.
class StreamEvent final : public Event {
 public:
  explicit StreamEvent(cudaStream_t stream) : stream_(stream) {}

  void record() override { event_.record(stream_); }
  double milliseconds_since(const Event& earlier) const override {
    event_.synchronize();
    return cuda::Event::milliseconds(static_cast<const StreamEvent&>(earlier).event_, event_);
  }

 private:
  cudaStream_t stream_;
  cuda::Event event_{/*timed=*/true};
};

/// Bytes that buffers hold, which may outlive their backend.
struct Allocated {
  std::size_t now = 0;
  std::size_t highest = 0;
};

/// A ring of pinned buffers, through which data reaches the GPU without holding up the host. A
/// buffer is used again once the copy from it is done, so that the host waits only when it is more
/// than the ring ahead of the GPU.
class Staging {
 public:
  Staging() {
    for (Slot& slot : slots_) {
      void* memory = nullptr;
      TRIREME_CUDA(cudaMallocHost(&memory, kBufferBytes));
      slot.memory = static_cast<std::byte*>(memory);
      slot.copied = std::make_unique<cuda::Event>();
    }
  }
  ~Staging() {
    for (Slot& slot : slots_) cudaFreeHost(slot.memory);
  }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// Enqueues a copy of host memory to the GPU; `source` may change as soon as this returns.
  void upload(void* destination, const void* source, std::size_t bytes, cudaStream_t stream) {
    for (std::size_t begin = 0; begin < bytes; begin += kBufferBytes) {
      const std::size_t part = std::min(kBufferBytes, bytes - begin);
      Slot& slot = slots_[next_];
      next_ = (next_ + 1) % slots_.size();
      slot.copied->synchronize();
      std::memcpy(slot.memory, static_cast<const std::byte*>(source) + begin, part);
      TRIREME_CUDA(cudaMemcpyAsync(static_cast<std::byte*>(destination) + begin, slot.memory, part,
                                   cudaMemcpyHostToDevice, stream));
      slot.copied->record(stream);
    }
  }

 private:
  static constexpr std::size_t kBufferBytes = std::size_t{4} << 20;
  struct Slot {
    std::byte* memory = nullptr;
    std::unique_ptr<cuda::Event> copied;
  };
  std::array<Slot, 8> slots_;
  std::size_t next_ = 0;
};

using Graph = std::unique_ptr<CUgraph_st, cudaError_t (*)(cudaGraph_t)>;

class CudaGraph final : public CapturedWork {
 public:
  /// Keeps `pass`, whose memory kernels of the graph read.
  CudaGraph(const Graph& graph, cudaStream_t stream,
            std::unique_ptr<kernels::cuda::DecodingPass> pass)
      : pass_(std::move(pass)), stream_(stream) {
    // Collectives stay ahead of the GEMMs that they overlap with, as on their own stream.
    TRIREME_CUDA(
        cudaGraphInstantiate(&executable_, graph.get(), cudaGraphInstantiateFlagUseNodePriority));
  }
  ~CudaGraph() override { cudaGraphExecDestroy(executable_); }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  void replay() override { TRIREME_CUDA(cudaGraphLaunch(executable_, stream_)); }

 private:
  std::unique_ptr<kernels::cuda::DecodingPass> pass_;
  cudaGraphExec_t executable_ = nullptr;
  cudaStream_t stream_;
};

/// Ends what was begun, and returns what has been recorded.
Graph end_capture(cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  TRIREME_CUDA(cudaStreamEndCapture(stream, &graph));
  return {graph, &cudaGraphDestroy};
}

/// What `work` enqueues. What other threads enqueue meanwhile is neither captured nor delayed.
Graph capture_stream(cudaStream_t stream, const std::function<void()>& work) {
  TRIREME_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  try {
    work();
  } catch (...) {
    cudaGraph_t incomplete = nullptr;
    if (cudaStreamEndCapture(stream, &incomplete) == cudaSuccess) cudaGraphDestroy(incomplete);
    throw;
  }
  return end_capture(stream);
}

// Operations are queued on one stream; the host runs ahead.
class CudaBackend final : public Backend {
 public:
  CudaBackend(int index, const std::string& gemm_cache, GemmChoice choice, Fusion fusion)
      : gpu_name_(visible_gpus()[index].name), gemm_(gemm_cache, choice, fusion) {
    int sms = 0, major = 0, minor = 0, shared = 0;
    TRIREME_CUDA(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, index));
    TRIREME_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index));
    TRIREME_CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index));
    TRIREME_CUDA(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, index));
    context_ = {.stream = stream_.get(),
                .sms = sms,
                .capability = 10 * major + minor,
                .shared_memory_bytes = shared};
    reserve_workspace(kernels_on_gpu::kGemmWorkspace);
  }

  std::string name() const override { return "cuda"; }
  bool is_host_memory() const override { return false; }

  Buffer allocate(std::size_t bytes, const char* purpose) override {
    void* memory = nullptr;
    const std::size_t whole =
        (std::max<std::size_t>(bytes, 1) + kGranule - 1) / kGranule * kGranule;
    const cudaError_t code = cudaMalloc(&memory, whole);
    if (code == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // not to be reported again by the next launch
      const Memory now = this->memory();
      throw CodedError<ExitCode::failure>("no memory for {}: {} asked for on {}, {} of {} are free",
                                          purpose, human_bytes(static_cast<double>(bytes)),
                                          process_identity(),
                                          human_bytes(static_cast<double>(now.total - now.used)),
                                          human_bytes(static_cast<double>(now.total)));
    }
    TRIREME_CUDA(code);
    TRIREME_CUDA(cudaMemsetAsync(memory, 0, whole, context_.stream));
    allocated_->now += whole;
    allocated_->highest = std::max(allocated_->highest, allocated_->now);
    return Buffer(memory, [whole, allocated = allocated_](void* address) {
      allocated->now -= whole;
      cudaFree(address);
    });
  }

  void zero(const Tensor& tensor) override {
    end_pass();
    if (tensor.bytes() > 0)
      TRIREME_CUDA(cudaMemsetAsync(tensor.data, 0, tensor.bytes(), context_.stream));
  }
  void copy(void* destination, const void* source, std::size_t bytes) override {
    end_pass();
    if (bytes > 0)
      TRIREME_CUDA(
          cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDeviceToDevice, context_.stream));
  }
  void upload(void* destination, const void* host_source, std::size_t bytes) override {
    end_pass();
    staging_.upload(destination, host_source, bytes, context_.stream);
  }
  void download(void* host_destination, const void* source, std::size_t bytes) override {
    if (bytes > 0)
      TRIREME_CUDA(cudaMemcpyAsync(host_destination, source, bytes, cudaMemcpyDeviceToHost,
                                   context_.stream));
    synchronize();
  }
  Buffer allocate_on_host(std::size_t bytes, const char* purpose) override {
    Buffer memory = allocate_page_locked(bytes);
    if (!memory)
      throw CodedError<ExitCode::failure>(
          "no memory for {}: the system refused {} of page-locked host memory on {}", purpose,
          human_bytes(static_cast<double>(bytes)), process_identity());
    return memory;
  }
  void start_copy(void* destination, const void* source, std::size_t bytes) override {
    end_pass();
    if (bytes == 0) return;
    copies_asked_.record(context_.stream);
    copies_asked_.hold(copies_.get());
    TRIREME_CUDA(cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDefault, copies_.get()));
    copies_done_.record(copies_.get());
  }
  void finish_copies() override { copies_done_.hold(context_.stream); }
  void synchronize() override { TRIREME_CUDA(cudaStreamSynchronize(context_.stream)); }

  std::string gpu_name() const override { return gpu_name_; }
  Memory memory() const override {
    Memory memory{.allocated = allocated_->now, .max_allocated = allocated_->highest};
    std::size_t free = 0;
    TRIREME_CUDA(cudaMemGetInfo(&free, &memory.total));
    memory.used = memory.total - free;
    return memory;
  }
  void reserve_workspace(std::size_t bytes) override {
    if (bytes <= context_.workspace_bytes) return;
    workspace_.reset();
    workspace_ = allocate(bytes, "workspace of kernels");
    context_.workspace = static_cast<std::byte*>(workspace_.get());
    context_.workspace_bytes = bytes;
  }
  std::unique_ptr<Event> make_event() override {
    return std::make_unique<StreamEvent>(context_.stream);
  }
  int fused_gemms() const override { return gemm_.fused_gemms(); }
  CUstream_st* stream() const override { return context_.stream; }
  std::unique_ptr<CapturedWork> capture(const std::function<void()>& work) override {
    pass_ = std::make_unique<kernels_on_gpu::DecodingPass>(context_);
    try {
      const Graph graph = capture_stream(context_.stream, [&] {
        work();
        pass_->flush();
      });
      pass_->upload();
      return std::make_unique<CudaGraph>(graph, context_.stream, std::move(pass_));
    } catch (...) {
      pass_.reset();
      throw;
    }
  }

#define TRIREME_DEFINE(operation, Arguments)                \
  void operation(const kernels::Arguments& args) override { \
    const OperationRange range(#operation);                 \
    end_pass();                                             \
    gemm_.operation(args, context_);                        \
  }
  TRIREME_GEMM_OPERATIONS(TRIREME_DEFINE)
#undef TRIREME_DEFINE
#define TRIREME_DEFINE(operation, Arguments)                \
  void operation(const kernels::Arguments& args) override { \
    const OperationRange range(#operation);                 \
    if (pass_ && pass_->take(args)) return;                 \
    kernels_on_gpu::operation(args, context_);              \
  }
  TRIREME_KERNEL_OPERATIONS(TRIREME_DEFINE)
#undef TRIREME_DEFINE

 private:
  /// Enqueues what a capture has gathered, before anything else is.
  void end_pass() {
    if (pass_) pass_->flush();
  }

  std::string gpu_name_;
  std::shared_ptr<Allocated> allocated_ = std::make_shared<Allocated>();
  cuda::Stream stream_;
  cuda::Stream copies_;  ///< of start_copy()
  cuda::Event copies_asked_, copies_done_;
  Staging staging_;
  kernels_on_gpu::GemmRunner gemm_;
  kernels_on_gpu::Context context_;
  std::unique_ptr<kernels_on_gpu::DecodingPass> pass_;  ///< of the capture that is made
  Buffer workspace_;
};

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(int index, const std::string& gemm_cache,
                                           GemmChoice choice, Fusion fusion) {
  use_gpu(index);
  static NvtxRanges nvtx;
  range_listener(RangeListeners::nvtx) = &nvtx;
  return std::make_unique<CudaBackend>(index, gemm_cache, choice, fusion);
}

namespace {

class CudaSideStream final : public SideStream {
 public:
  CUstream_st* stream() const override { return stream_.get(); }
  std::unique_ptr<Event> record() override {
    auto event = std::make_unique<StreamEvent>(stream_.get());
    event->record();
    return event;
  }

 private:
  cuda::Stream stream_;
};

}  // namespace

std::unique_ptr<SideStream> make_side_stream(const Backend& backend) {
  return backend.stream() ? std::make_unique<CudaSideStream>() : nullptr;
}

}  // namespace trireme::device
