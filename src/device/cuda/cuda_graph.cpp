#include "device/cuda/cuda_graph.hpp"

#include "core/cuda/check.hpp"

namespace trireme::device {
namespace {

using Graph = std::unique_ptr<CUgraph_st, cudaError_t (*)(cudaGraph_t)>;

class CudaGraph final : public CapturedWork {
 public:
  CudaGraph(const Graph& graph, cudaStream_t stream) : stream_(stream) {
    TRIREME_CUDA(cudaGraphInstantiate(&executable_, graph.get(), 0));
  }
  ~CudaGraph() override { cudaGraphExecDestroy(executable_); }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  void replay() override { TRIREME_CUDA(cudaGraphLaunch(executable_, stream_)); }

 private:
  cudaGraphExec_t executable_ = nullptr;
  cudaStream_t stream_;
};

/// Ends what was begun, and returns what has been recorded.
Graph end_capture(cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  TRIREME_CUDA(cudaStreamEndCapture(stream, &graph));
  return {graph, &cudaGraphDestroy};
}

}  // namespace

std::unique_ptr<CapturedWork> capture_stream(CUstream_st* stream,
                                             const std::function<void()>& work) {
  TRIREME_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  try {
    work();
  } catch (...) {
    cudaGraph_t incomplete = nullptr;
    if (cudaStreamEndCapture(stream, &incomplete) == cudaSuccess) cudaGraphDestroy(incomplete);
    throw;
  }
  return std::make_unique<CudaGraph>(end_capture(stream), stream);
}

}  // namespace trireme::device
