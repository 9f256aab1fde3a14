#include "kernels/zero_count.hpp"

#include "kernels/host/stretches.hpp"
#include "kernels/preconditions.hpp"

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
  check_vector("zero_count", "x", args.x, args.x.dtype, args.x.size());
  check_vector("zero_count", "out", args.out, DType::f64, 1);
  for_stretches(args.counted, args.x.size(),
                [&](std::int64_t begin, std::int64_t end, bool counts) {
                  if (!counts) return;
                  *args.out.as<double>() += dispatch(args.x.dtype, [&](auto zero) {
                    using T = decltype(zero);
                    return static_cast<double>(count_zeros(args.x.as<T>() + begin, end - begin));
                  });
                });
}

}  // namespace trireme::kernels::host
