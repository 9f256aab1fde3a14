#include "comm/mpi/waiting.hpp"

#include <chrono>

namespace trireme::comm {
namespace {

thread_local double total = 0.0;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

double seconds_in_mpi() { return total; }

MpiTime::MpiTime() : start_(now()) {}

MpiTime::~MpiTime() { total += now() - start_; }

}  // namespace trireme::comm
