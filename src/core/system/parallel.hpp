// Independent pieces of work on several threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

namespace trireme {

/// As many threads as std::thread::hardware_concurrency() counts CPUs, at most `most`.
inline std::size_t usable_threads(std::size_t most) {
  return std::clamp<std::size_t>(std::thread::hardware_concurrency(), 1, most);
}

/// Calls work(i) for all i below `count`, in order of i, on at most `threads` threads, this one
/// among them. After an exception no further piece begins; throws that of the lowest i that failed,
/// which does not depend on the threads.
inline void in_parallel(std::size_t count, std::size_t threads,
                        const std::function<void(std::size_t)>& work) {
  struct Failure {
    std::size_t piece = 0;
    std::exception_ptr error;
  };
  std::atomic<std::size_t> next = 0;
  std::vector<Failure> failures(std::max<std::size_t>(threads, 1));
  const auto loop = [&](Failure& failure) {
    for (std::size_t i = next++; i < count; i = next++) {
      try {
        work(i);
      } catch (...) {
        failure = {i, std::current_exception()};
        next = count;
      }
    }
  };
  {
    std::vector<std::jthread> others;
    for (std::size_t thread = 1; thread < std::min(threads, count); ++thread)
      others.emplace_back([&, thread] { loop(failures[thread]); });
    loop(failures[0]);
  }
  const Failure* first = nullptr;
  for (const Failure& failure : failures)
    if (failure.error && (!first || failure.piece < first->piece)) first = &failure;
  if (first) std::rethrow_exception(first->error);
}

}  // namespace trireme
