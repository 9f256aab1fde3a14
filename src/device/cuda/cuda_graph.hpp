// Work of a stream that is recorded once and queued again as a whole: a CUDA graph.
#pragma once

#include <functional>
#include <memory>

#include "device/backend.hpp"

struct CUstream_st;

namespace trireme::device {

/// See Backend::capture(). What other threads ask of CUDA meanwhile is neither recorded nor in the
/// way.
std::unique_ptr<CapturedWork> capture_stream(CUstream_st* stream,
                                             const std::function<void()>& work);

}  // namespace trireme::device
