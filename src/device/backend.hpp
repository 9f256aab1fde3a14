// The backend interface: memory and the short list of operations that a transformer needs. The host
// backend is the executable specification; every other backend is tested against it. The contract
// of each operation stands in its header in kernels/; [T, n] there stands for any shape with a last
// axis of n and T rows above it, such as [s, b, n].
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/tensor.hpp"
#include "kernels/cuda/workspace.hpp"
#include "kernels/operations.hpp"

namespace trireme::device {

/// Memory of a backend, freed with its last owner.
using Buffer = std::shared_ptr<void>;

/// A point in the order of a backend's work, as a CUDA event; it can be recorded again and again.
class Event {
 public:
  virtual ~Event() = default;
  /// Records the event after everything enqueued on the backend so far.
  virtual void record() = 0;
  /// Milliseconds from `earlier`, an event of the same backend, to this one; both are recorded.
  /// Waits until the work before this one is done.
  virtual double milliseconds_since(const Event& earlier) const = 0;
};

/// Operations that were captured, to be enqueued as a whole: a CUDA graph.
class CapturedWork {
 public:
  virtual ~CapturedWork() = default;
  /// Enqueues them with the arguments that they were captured with.
  virtual void replay() = 0;
};

/// The device of a rank. Operations may run asynchronously in call order; synchronize()
/// waits for all of them.
class Backend {
 public:
  virtual ~Backend() = default;

  /// "host" or "cuda".
  virtual std::string name() const = 0;
  /// Whether the host may read and write this backend's memory itself.
  virtual bool is_host_memory() const = 0;

  /// `bytes` of zeroed memory, aligned to 256 bytes or more. Throws Error (exit 1) naming `purpose`
  /// when there is not enough.
  virtual Buffer allocate(std::size_t bytes, const char* purpose) = 0;
  /// Writes zeros over `tensor`.
  virtual void zero(const Tensor& tensor) = 0;
  /// Copies `bytes` from one place of this backend's memory to another; the two do not overlap.
  virtual void copy(void* destination, const void* source, std::size_t bytes) = 0;
  /// Copies host memory to the backend's.
  virtual void upload(void* destination, const void* host_source, std::size_t bytes) = 0;
  /// Copies the backend's memory to the host, after everything called before is done.
  virtual void download(void* host_destination, const void* source, std::size_t bytes) = 0;
  /// `bytes` of the host's memory for start_copy(): page-locked where that makes copies faster, so
  /// that it cannot be swapped. Throws as allocate().
  virtual Buffer allocate_on_host(std::size_t bytes, const char* purpose) = 0;
  /// Starts a copy from this backend's memory to allocate_on_host()'s, or back: after everything
  /// called before, overlapped with what is called next. Until finish_copies() nothing may write to
  /// either place or read the destination. Copies are made one after the other.
  virtual void start_copy(void* destination, const void* source, std::size_t bytes) = 0;
  /// Makes what is called next wait for every copy that was started. A second call does nothing.
  virtual void finish_copies() = 0;
  /// Waits until everything called before is done.
  virtual void synchronize() = 0;

  /// An event that is not recorded yet. The backend must outlive it.
  virtual std::unique_ptr<Event> make_event() = 0;

  /// Memory in bytes: of the GPU on CUDA, zero on the host.
  struct Memory {
    std::size_t used = 0;  ///< by anything: libraries and other programs, too
    std::size_t total = 0;
    std::size_t allocated = 0;      ///< by allocate(), and not freed yet
    std::size_t max_allocated = 0;  ///< at its highest
  };
  virtual Memory memory() const { return {}; }
  /// The GPU's name; "" on the host.
  virtual std::string gpu_name() const { return ""; }
  /// Makes room for the scratch memory of the largest operation to come; before the first one.
  virtual void reserve_workspace(std::size_t bytes) = 0;
  /// How many GEMMs have computed their GELU or bias gradient in their own kernel; 0 on the host.
  virtual int fused_gemms() const { return 0; }
  /// The CUDA stream that operations are enqueued on; null on the host.
  virtual CUstream_st* stream() const { return nullptr; }

  /// Captures the operations that `work()` enqueues on this backend, without running them; each of
  /// them has run before with arguments of these sizes. Null, `work()` not called,
  /// where replaying would gain nothing. The backend must outlive the result.
  virtual std::unique_ptr<CapturedWork> capture(const std::function<void()>& work) {
    (void)work;
    return nullptr;
  }

  // Every operation of kernels/operations.hpp, such as `virtual void adamw(const kernels::AdamW&)`.
#define TRIREME_DECLARE(operation, Arguments) \
  virtual void operation(const kernels::Arguments& args) = 0;
  TRIREME_OPERATIONS(TRIREME_DECLARE)
#undef TRIREME_DECLARE
};

/// A GPU that this process sees.
struct Gpu {
  std::string name;
  int capability = 0;  ///< 10 * major + minor
  std::size_t memory_bytes = 0;
  std::size_t cache_bytes = 0;  ///< of the L2 cache
  std::string bus_id = {};      ///< "0000:3B:00.0", by which other libraries know it
};

/// FLOPs per second of dense GEMMs of `dtype` on a GPU of this name, from its data sheet; 0 when
/// the GPU is not known.
double peak_flops(const std::string& gpu, DType dtype);

/// The GPUs that this process sees, in CUDA's order; empty when there are none.
std::vector<Gpu> visible_gpus();
/// Why visible_gpus() is empty, for messages: "this build has no CUDA backend", or the driver's own
/// text.
std::string why_no_gpu();

using kernels::Fusion;
using kernels::GemmChoice;

/// The CUDA backend on GPU `index` of visible_gpus(): one compute stream, kernels for compute
/// capability 8.0 and newer, GEMMs through cuBLASLt. `gemm_cache` names the tuning
/// cache, the file that keeps the timed choices of GEMM algorithms between runs; empty keeps none.
/// Throws Error (exit 1) saying what is missing: no CUDA in this build, no such GPU, a GPU that is
/// too old, no cuBLASLt.
std::unique_ptr<Backend> make_cuda_backend(int index, const std::string& gemm_cache = "",
                                           GemmChoice choice = GemmChoice::timed,
                                           Fusion fusion = Fusion::timed);

/// The host backend: CPU threads and OpenBLAS. `threads` workers compute each operation; results do
/// not depend on their number. Throws Error (exit 1) where there is no address space for OpenBLAS.
std::unique_ptr<Backend> make_host_backend(int threads);

/// Threads this rank should use: the cores in its affinity mask, shared evenly among the `sharing`
/// ranks that have the same mask; at least 1. OMP_NUM_THREADS, when set, wins.
int threads_for_rank(int sharing);

// Scratch memory that operations need on a GPU, for Backend::reserve_workspace(). Arithmetic alone:
// memory plans for GPUs are made on machines without one. The host backend needs none.

/// Bytes for GEMMs, linear layers, GELU and gradients of biases, of which the longest has
/// `columns` elements.
std::size_t linear_workspace(std::int64_t columns);

/// Bytes for attention of `b` samples of `s` tokens, with `heads` local heads of dimension `d`,
/// which share `kv_heads` local heads of keys and values (0: have their own), and activations of
/// `dtype`.
std::size_t attention_workspace(DType dtype, std::int64_t s, std::int64_t b, std::int64_t heads,
                                std::int64_t d, std::int64_t kv_heads = 0);

/// Bytes for layer norms over `hidden` columns.
std::size_t layernorm_workspace(std::int64_t hidden);

/// Bytes for embeddings of `tokens` tokens with `hidden` columns.
std::size_t embedding_workspace(std::int64_t tokens, std::int64_t hidden);

/// Bytes for sums over whole buffers: the loss, gradient norms, counts of zeros.
std::size_t sum_workspace();

/// The widths of a layer, for decoding_pass_bytes().
using kernels::cuda::PassLayer;

/// Bytes that a captured pass over one token of `layers` and an output projection to `vocab`
/// logits allocates for its one kernel, at most: none on GPUs that have no such kernel.
constexpr std::size_t decoding_pass_bytes(std::span<const PassLayer> layers, std::int64_t vocab) {
  std::size_t bytes = kernels::cuda::kPassBytes + kernels::cuda::pass_step_bytes(vocab);
  for (const PassLayer& layer : layers) bytes += kernels::cuda::pass_layer_bytes(layer);
  return bytes;
}

}  // namespace trireme::device
