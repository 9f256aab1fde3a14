#include "core/identity.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <climits>

namespace trireme {
namespace {

int process_rank = -1;

}  // namespace

void set_process_rank(int rank) { process_rank = rank; }

std::string host_name() {
  char name[HOST_NAME_MAX + 1] = {};
  return gethostname(name, HOST_NAME_MAX) == 0 ? name : "unknown host";
}

std::string process_identity() {
  return process_rank < 0 ? host_name() : fmt::format("rank {} on {}", process_rank, host_name());
}

}  // namespace trireme
