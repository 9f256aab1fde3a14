#include "kernels/rotary.hpp"

#include "core/error.hpp"

namespace trireme::kernels::cuda {
namespace {

[[noreturn]] void refuse(const char* what) {
  throw DeckError("{} are not built for GPUs yet: say run.device = host", what);
}

}  // namespace

void rotary(const Rotary&, const Context&) { refuse("rotary positions"); }

void qk_norm_sums(const QkNormSums&, const Context&) { refuse("norms of queries and keys"); }

void qk_norm_forward(const QkNormForward&, const Context&) { refuse("norms of queries and keys"); }

void qk_norm_backward(const QkNormBackward&, const Context&) {
  refuse("norms of queries and keys");
}

}  // namespace trireme::kernels::cuda
