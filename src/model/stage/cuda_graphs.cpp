#include "model/stage/cuda_graphs.hpp"

namespace trireme::model {

void CudaGraphs::run(device::Backend& backend, const Key& key, const std::function<void()>& work) {
  const auto [known, is_first] = graphs_.try_emplace(key);
  std::unique_ptr<device::Recording>& graph = known->second;
  if (!is_first && !graph) graph = backend.record(work);
  if (graph)
    graph->replay();
  else
    work();
}

}  // namespace trireme::model
