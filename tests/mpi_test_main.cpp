// main() of test programs that run under mpirun: every rank runs every test; only rank 0 prints,
// unless a rank fails. With TRIREME_TESTS_NEED_GPUS every rank gets a GPU of its own; where there
// are too few, the tests are skipped, loudly, and never pass.
#include <gtest/gtest.h>
#include <mpi.h>

#include <cstdio>

#ifdef TRIREME_TESTS_NEED_GPUS
#include "rank_gpu.hpp"
#endif

namespace {

/// Prints the failures of ranks other than 0, whose usual output is silenced.
class RankPrinter : public testing::EmptyTestEventListener {
 public:
  explicit RankPrinter(int rank) : rank_(rank) {}
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::fprintf(stderr, "rank %d: %s:%d: %s\n", rank_,
                 result.file_name() ? result.file_name() : "?", result.line_number(),
                 result.message());
  }

 private:
  int rank_;
};

}  // namespace

int main(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
#ifdef TRIREME_TESTS_NEED_GPUS
  if (const std::string missing = trireme::take_gpu_of_rank(); !missing.empty()) {
    if (rank == 0) std::printf("SKIPPED: %s\n", missing.c_str());
    MPI_Finalize();
    return 77;
  }
#endif
  testing::InitGoogleTest(&argc, argv);
  if (rank != 0) {
    auto& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new RankPrinter(rank));
  }
  int failed = RUN_ALL_TESTS();
  MPI_Allreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  MPI_Finalize();
  return failed;
}
