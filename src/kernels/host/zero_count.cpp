#include "kernels/zero_count.hpp"

#include "kernels/host/stretches.hpp"

namespace trireme::kernels::host {
namespace {

template <typename T>
std::int64_t count_zeros(const T* x, std::int64_t size) {
  std::int64_t count = 0;
#pragma omp parallel for simd schedule(static) reduction(+ : count)
  for (std::int64_t i = 0; i < size; ++i) count += x[i] == T{0};
  return count;
}

}  // namespace

void zero_count(const ZeroCount& args) {
  add_counted("zero_count", args, [](const auto* x, std::int64_t size) {
    return static_cast<double>(count_zeros(x, size));
  });
}

}  // namespace trireme::kernels::host
