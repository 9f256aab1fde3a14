#include "kernels/cuda/attention/hopper/backward.cuh"

namespace trireme::kernels::cuda {

template void launch_box_backward<64>(const AttentionBackward& args, const Context& context);
template void launch_box_backward<80>(const AttentionBackward& args, const Context& context);
template void launch_box_backward<96>(const AttentionBackward& args, const Context& context);
template void launch_box_backward<128>(const AttentionBackward& args, const Context& context);

}  // namespace trireme::kernels::cuda
