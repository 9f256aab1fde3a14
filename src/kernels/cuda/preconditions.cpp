#include "kernels/cuda/preconditions.hpp"

namespace trireme::kernels::cuda {

void check_workspace(const char* op, const Context& context, std::size_t bytes) {
  TRIREME_CHECK(context.workspace_bytes >= bytes, "{}: needs {} bytes of workspace, has {}", op,
                bytes, context.workspace_bytes);
}

}  // namespace trireme::kernels::cuda
