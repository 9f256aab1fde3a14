#include "kernels/cuda/attention/hopper/forward.cuh"

namespace trireme::kernels::cuda {

template void launch_box_forward<64>(const AttentionForward& args, const Context& context);
template void launch_box_forward<80>(const AttentionForward& args, const Context& context);
template void launch_box_forward<96>(const AttentionForward& args, const Context& context);
template void launch_box_forward<112>(const AttentionForward& args, const Context& context);
template void launch_box_forward<128>(const AttentionForward& args, const Context& context);

}  // namespace trireme::kernels::cuda
