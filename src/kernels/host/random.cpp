#include "kernels/random.hpp"

#include "kernels/host/compute.hpp"
#include "kernels/preconditions.hpp"

namespace trireme::kernels::host {

void random_normal(const RandomNormal& args) {
  const Extents extents = extents_of("random_normal", "out", args.out);
  check_matrix("random_normal", "out", args.out, args.out.dtype, extents);
  compute(args, args.out.dtype, {}, {&RandomNormal::out}, [&](const RandomNormal& it, auto zero) {
    using T = decltype(zero);
    T* out = it.out.as<T>();
    parallel_for(it.out.size(), [&](std::int64_t i) {
      out[i] = static_cast<T>(random_normal_value(it, extents.columns, i));
    });
  });
}

}  // namespace trireme::kernels::host
