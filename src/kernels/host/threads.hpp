// The threads that compute an operation, and their scratch memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace trireme::kernels::host {

/// Makes the host kernels called from this thread use `threads` OpenMP threads, and OpenBLAS one:
/// GEMMs are cut among our threads. No result depends on the number.
void use_threads(int threads);

/// Runs body(i) for i in [0, count), spread over the threads. The body must not throw.
template <typename Body>
void parallel_for(std::int64_t count, const Body& body) {
#pragma omp parallel for schedule(static)
  for (std::int64_t i = 0; i < count; ++i) body(i);
}

/// Cuts [0, count) into blocks of `block` and runs body(begin, end) for each, spread over the
/// threads. The cut does not depend on the number of threads.
template <typename Body>
void parallel_blocks(std::int64_t count, std::int64_t block, const Body& body) {
  parallel_for((count + block - 1) / block, [&](std::int64_t i) {
    const std::int64_t begin = i * block;
    body(begin, begin + block < count ? begin + block : count);
  });
}

/// At least `count` elements of working memory of the calling thread, of any content. It is kept
/// between calls, so that a training loop allocates nothing after its first step; the next call
/// with the same types on this thread hands out the same memory. `Owner` keeps users apart.
template <typename T, typename Owner>
T* scratch(std::size_t count) {
  thread_local std::vector<T> memory;
  if (memory.size() < count) {
    memory = std::vector<T>();  // before the larger one is allocated: the content is not needed
    memory.resize(count);
  }
  return memory.data();
}

}  // namespace trireme::kernels::host
