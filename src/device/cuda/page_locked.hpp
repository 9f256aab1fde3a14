// Page-locked host memory: what the GPU copies to and from while the host computes.
#pragma once

#include <cstddef>

#include "device/backend.hpp"

namespace trireme::device {

/// `bytes` of page-locked host memory, freed with its last owner; null where the system has not
/// enough. The host's threads fault in large buffers together: CUDA alone takes 0.3 s for each GB.
Buffer allocate_page_locked(std::size_t bytes);

}  // namespace trireme::device
