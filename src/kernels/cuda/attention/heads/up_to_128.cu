#include "kernels/cuda/attention/backward.cuh"
#include "kernels/cuda/attention/forward.cuh"

namespace trireme::kernels::cuda {

template void launch_forward<112>(const AttentionForward& args, const Context& context);
template void launch_backward<112>(const AttentionBackward& args, const Context& context);
template void launch_forward<128>(const AttentionForward& args, const Context& context);
template void launch_backward<128>(const AttentionBackward& args, const Context& context);

}  // namespace trireme::kernels::cuda
