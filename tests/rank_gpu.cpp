#include "rank_gpu.hpp"

#include <cuda_runtime_api.h>

#include "comm/mpi/mpi_communicator.hpp"

namespace trireme {

std::string take_gpu_of_rank() {
  const auto world = comm::MpiCommunicator::world();
  const int index = comm::node_local_rank(*world);
  int gpus = 0;
  const cudaError_t code = cudaGetDeviceCount(&gpus);
  const bool taken = code == cudaSuccess && index < gpus && cudaSetDevice(index) == cudaSuccess;
  if (world->all_reduce(taken, comm::Reduce::min) > 0.0) return "";
  const std::string found = code == cudaSuccess ? std::to_string(gpus) : cudaGetErrorString(code);
  return fmt::format("these tests need a GPU for each of {} ranks; CUDA finds: {}", world->size(),
                     found);
}

}  // namespace trireme
