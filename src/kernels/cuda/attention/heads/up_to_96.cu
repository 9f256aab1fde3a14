#include "kernels/cuda/attention/backward.cuh"
#include "kernels/cuda/attention/forward.cuh"

namespace trireme::kernels::cuda {

template void launch_forward<80>(const AttentionForward& args, const Context& context);
template void launch_backward<80>(const AttentionBackward& args, const Context& context);
template void launch_forward<96>(const AttentionForward& args, const Context& context);
template void launch_backward<96>(const AttentionBackward& args, const Context& context);

}  // namespace trireme::kernels::cuda
