#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/files.hpp"
#include "device/backend.hpp"
#include "kernels/host/blas.hpp"
#include "kernels/host/compute.hpp"

namespace trireme::device {
namespace {

namespace host = kernels::host;

/// The time at which it was recorded: all that was enqueued before is done by then.
class HostEvent final : public Event {
 public:
  void record() override { since_recorded_ = {}; }
  double milliseconds_since(const Event& earlier) const override {
    return 1e3 *
           since_recorded_.seconds_after(static_cast<const HostEvent&>(earlier).since_recorded_);
  }

 private:
  Stopwatch since_recorded_;
};

// Operations run immediately on the calling thread's OpenMP team, so nothing is ever pending.
class HostBackend final : public Backend {
 public:
  explicit HostBackend(int threads) {
    host::use_threads(threads);
    host::take_blas_buffers(threads);
  }

  std::string name() const override { return "host"; }
  bool is_host_memory() const override { return true; }

  Buffer allocate(std::size_t bytes, const char* purpose) override {
    const std::size_t mapped = std::max<std::size_t>(bytes, 1);
    void* memory =
        mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
      throw CodedError<ExitCode::failure>("no memory for {}: the system refused {}", purpose,
                                          human_bytes(static_cast<double>(bytes)));
    return Buffer(memory, [mapped](void* address) { munmap(address, mapped); });
  }

  void zero(const Tensor& tensor) override {
    if (tensor.bytes() > 0) std::memset(tensor.data, 0, tensor.bytes());
  }
  void copy(void* destination, const void* source, std::size_t bytes) override {
    if (bytes > 0) std::memcpy(destination, source, bytes);
  }
  void upload(void* destination, const void* host_source, std::size_t bytes) override {
    copy(destination, host_source, bytes);
  }
  void download(void* host_destination, const void* source, std::size_t bytes) override {
    copy(host_destination, source, bytes);
  }
  Buffer allocate_on_host(std::size_t bytes, const char* purpose) override {
    return allocate(bytes, purpose);
  }
  // A copy that overlaps with other work may be at any byte when that work reads or writes: half of
  // it is made now and half in finish_copies(), so that a caller that relies on either order gets
  // wrong results here, too.
  void start_copy(void* destination, const void* source, std::size_t bytes) override {
    const std::size_t half = bytes / 2;
    copy(destination, source, half);
    late_copies_.push_back({static_cast<std::byte*>(destination) + half,
                            static_cast<const std::byte*>(source) + half, bytes - half});
  }
  void finish_copies() override {
    for (const Copy& late : late_copies_) copy(late.destination, late.source, late.bytes);
    late_copies_.clear();
  }
  void synchronize() override {}
  void reserve_workspace(std::size_t) override {}
  std::unique_ptr<Event> make_event() override { return std::make_unique<HostEvent>(); }

#define TRIREME_DEFINE(operation, Arguments) \
  void operation(const kernels::Arguments& args) override { host::operation(args); }
  TRIREME_OPERATIONS(TRIREME_DEFINE)
#undef TRIREME_DEFINE

 private:
  struct Copy {
    void* destination;
    const void* source;
    std::size_t bytes;
  };
  std::vector<Copy> late_copies_;
};

// Cores in the affinity mask of this process.
int cores_in_mask() {
  constexpr int kMaxCores = 16384;
  cpu_set_t* mask = CPU_ALLOC(kMaxCores);
  const std::size_t size = CPU_ALLOC_SIZE(kMaxCores);
  const int cores =
      mask != nullptr && sched_getaffinity(0, size, mask) == 0 ? CPU_COUNT_S(size, mask) : 1;
  CPU_FREE(mask);
  return cores;
}

}  // namespace

std::unique_ptr<Backend> make_host_backend(int threads) {
  TRIREME_CHECK(threads >= 1, "make_host_backend: {} threads", threads);
  return std::make_unique<HostBackend>(threads);
}

int threads_for_rank(int sharing) {
  TRIREME_CHECK(sharing >= 1, "threads_for_rank: shared by {} ranks", sharing);
  // A list such as "4,2" is one number per nesting level; ours is the first.
  if (const char* wanted = std::getenv("OMP_NUM_THREADS"))
    if (const long threads = std::strtol(wanted, nullptr, 10); threads >= 1)
      return static_cast<int>(std::min(threads, 1024L));
  return std::max(1, cores_in_mask() / sharing);
}

}  // namespace trireme::device
