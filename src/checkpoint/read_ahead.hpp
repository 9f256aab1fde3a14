// Reading the elements of a checkpoint with several threads while the calling one passes them on.
#pragma once

#include <cstddef>
#include <functional>

namespace trireme::checkpoint {

/// Calls read(i, buffer) for all i below `count` on `threads` threads, and use(i, buffer) on the
/// calling thread in the order of i, once read(i) has returned. `buffer` is that of i in both, of
/// `bytes`, which may be 0; there are two for each thread. Returns when all threads have ended;
/// throws what one of the calls threw, after which others may be left out. No MPI.
void read_ahead(std::size_t count, int threads, std::size_t bytes,
                const std::function<void(std::size_t i, void* buffer)>& read,
                const std::function<void(std::size_t i, const void* buffer)>& use);

}  // namespace trireme::checkpoint
