#include "kernels/host/gemm/blas.hpp"

#include <cblas.h>
#include <omp.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <vector>

#include "core/error.hpp"
#include "kernels/host/compute.hpp"

// OpenBLAS's own, in no header: hands out a buffer that no GEMM uses, or maps one more. Weak, as
// a library may keep them to itself.
extern "C" {
[[gnu::weak]] void* blas_memory_alloc(int purpose);
[[gnu::weak]] void blas_memory_free(void* buffer);
}

namespace trireme::kernels::host {
namespace {

// What a buffer takes on x86-64, and a page for its alignment.
constexpr std::size_t kBufferBytes = (std::size_t{128} << 20) + 4096;

// Every OpenBLAS has room for so many buffers; one built for few cores warns about more.
constexpr int kMaxBuffers = 50;

// Whether the system would grant so much address space. Nothing is reserved, as for many small
// mappings: one large one would be refused for the machine's size alone.
bool is_granted(std::size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return false;
  munmap(memory, bytes);
  return true;
}

}  // namespace

void take_blas_buffers(int threads) {
  static std::mutex mutex;
  static int taken = 0;
  const std::lock_guard lock(mutex);
  if (threads <= taken) return;
  if (!is_granted(static_cast<std::size_t>(threads - taken) * kBufferBytes))
    throw CodedError<ExitCode::failure>(
        "no memory for GEMMs: OpenBLAS takes 128 MiB of address space for {}; raise the limit "
        "(ulimit -v){}",
        threads == 1 ? "its thread" : fmt::format("each of {} threads", threads),
        threads == 1 ? "" : " or lower OMP_NUM_THREADS");
  taken = threads;
  if (!blas_memory_alloc || !blas_memory_free) return;
  std::vector<void*> buffers(static_cast<std::size_t>(std::min(threads, kMaxBuffers)));
  for (void*& buffer : buffers) buffer = blas_memory_alloc(0);
  for (void* buffer : buffers) blas_memory_free(buffer);
}

void use_threads(int threads) {
  omp_set_num_threads(threads);
  openblas_set_num_threads(1);
}

}  // namespace trireme::kernels::host
