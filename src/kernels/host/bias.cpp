#include "kernels/bias.hpp"

#include "kernels/host/checks.hpp"
#include "kernels/host/columns.hpp"

namespace trireme::kernels::host {

void bias_gradient(const BiasGradient& args) {
  const DType dtype = args.dout.dtype;
  const auto [rows, n] = extents_of("bias_gradient", "dout", args.dout);
  check_matrix("bias_gradient", "dout", args.dout, dtype, rows, n);
  check_vector("bias_gradient", "dbias", args.dbias, dtype, n);
  dispatch(dtype, [&, rows = rows, n = n](auto zero) {
    using T = decltype(zero);
    const T* dout = args.dout.as<T>();
    add_column_sums(rows, n, args.dbias.as<T>(),
                    [&](std::int64_t t, std::int64_t i) { return dout[t * n + i]; });
  });
}

}  // namespace trireme::kernels::host
