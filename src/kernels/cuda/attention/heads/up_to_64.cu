#include "kernels/cuda/attention/backward.cuh"
#include "kernels/cuda/attention/forward.cuh"

namespace trireme::kernels::cuda {

template void launch_forward<32>(const AttentionForward& args, const Context& context);
template void launch_backward<32>(const AttentionBackward& args, const Context& context);
template void launch_forward<64>(const AttentionForward& args, const Context& context);
template void launch_backward<64>(const AttentionBackward& args, const Context& context);

}  // namespace trireme::kernels::cuda
