// Preconditions of the CUDA launchers: those of all backends, and of their context.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/error.hpp"
#include "kernels/cuda/context.hpp"
#include "kernels/preconditions.hpp"

namespace trireme::kernels::cuda {

/// Throws InternalError unless the context has `bytes` of workspace.
inline void check_workspace(const char* op, const Context& context, std::size_t bytes) {
  TRIREME_CHECK(context.workspace_bytes >= bytes, "{}: needs {} bytes of workspace, has {}", op,
                bytes, context.workspace_bytes);
}

/// Whether `pointer` can be read 16 bytes at a time.
inline bool aligned16(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
}

}  // namespace trireme::kernels::cuda
