#include "kernels/random.hpp"

#include "kernels/host/threads.hpp"
#include "kernels/preconditions.hpp"

namespace trireme::kernels::host {

void random_normal(const RandomNormal& args) {
  const Extents extents = extents_of("random_normal", "out", args.out);
  const std::int64_t size = args.out.size();
  check_matrix("random_normal", "out", args.out, accumulation_type(args.out.dtype), extents);
  dispatch(args.out.dtype, [&](auto zero) {
    using T = decltype(zero);
    T* out = args.out.as<T>();
    parallel_for(size, [&](std::int64_t i) {
      out[i] = static_cast<T>(random_normal_value(args, extents.columns, i));
    });
  });
}

}  // namespace trireme::kernels::host
