// Working memory of the kernels.
#pragma once

#include <cstddef>
#include <vector>

namespace trireme::kernels::host {

/// At least `count` elements of working memory of the calling thread, of any content. It is kept
/// between calls, so that a training loop allocates nothing after its first step; the next call
/// with the same types on this thread hands out the same memory. `Owner` keeps users apart.
template <typename T, typename Owner>
T* scratch(std::size_t count) {
  thread_local std::vector<T> memory;
  if (memory.size() < count) memory.resize(count);
  return memory.data();
}

}  // namespace trireme::kernels::host
