// How long this process has waited for other ranks.
#pragma once

namespace trireme::comm {

/// Seconds that the calling thread has spent in communicators' MPI calls since it began: waiting
/// for other ranks, and moving data. What NCCL does on a GPU's streams is no part of it.
double seconds_in_mpi();

/// Adds the length of its scope to that.
class MpiTime {
 public:
  MpiTime();
  ~MpiTime();
  MpiTime(const MpiTime&) = delete;
  MpiTime& operator=(const MpiTime&) = delete;

 private:
  double start_;
};

}  // namespace trireme::comm
