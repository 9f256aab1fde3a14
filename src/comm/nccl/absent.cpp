// The device communicator's factory in a build without CUDA.
#include "comm/communicator.hpp"
#include "core/error.hpp"

namespace trireme::comm {

std::string nccl_version() { return ""; }

std::unique_ptr<Communicator> make_device_communicator(MpiCommunicator&, const std::string& name,
                                                       CUstream_st*, const NcclOptions&) {
  throw CodedError<ExitCode::failure>(
      "group '{}' cannot reach GPUs: this build has no CUDA backend (TRIREME_CUDA)", name);
}

}  // namespace trireme::comm
