#include "kernels/bias.hpp"

#include "kernels/host/columns.hpp"
#include "kernels/host/half_storage.hpp"
#include "kernels/preconditions.hpp"

namespace trireme::kernels::host {

void bias_gradient(const BiasGradient& args) {
  const DType dtype = args.dout.dtype;
  const auto [rows, n] = extents_of("bias_gradient", "dout", args.dout);
  check_matrix("bias_gradient", "dout", args.dout, dtype, {rows, n});
  check_vector("bias_gradient", "dbias", args.dbias, accumulation_type(dtype), n);
  using Args = BiasGradient;
  compute(args, dtype, {&Args::dout}, {}, [rows = rows, n = n](const Args& a, auto zero) {
    using T = decltype(zero);
    const T* dout = a.dout.as<T>();
    add_column_sums(rows, n, a.dbias.as<T>(),
                    [&](std::int64_t t, std::int64_t i) { return dout[t * n + i]; });
  });
}

}  // namespace trireme::kernels::host
