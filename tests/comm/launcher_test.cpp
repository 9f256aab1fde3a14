#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>

#include "comm/mpi/mpi_communicator.hpp"
#include "core/error.hpp"

namespace trireme::comm {
namespace {

/// Sets or removes an environment variable for the life of the object.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    set(value);
  }
  ~ScopedVariable() { set(old_ ? old_->c_str() : nullptr); }

 private:
  void set(const char* value) {
    if (value)
      ::setenv(name_, value, 1);
    else
      ::unsetenv(name_);
  }
  const char* name_;
  std::optional<std::string> old_;
};

template <typename Check>
std::string problem_of(Check&& check) {
  try {
    check();
    return "";
  } catch (const LauncherError& error) {
    EXPECT_EQ(error.code(), ExitCode::failure);
    return error.what();
  }
}

std::string problem(int size) {
  return problem_of([&] { check_launcher(size); });
}

class LauncherTest : public testing::Test {
 private:
  ScopedVariable ompi_{"OMPI_COMM_WORLD_SIZE", nullptr};
  ScopedVariable slurm_{"SLURM_NTASKS", nullptr};
  ScopedVariable pmi_{"PMI_SIZE", nullptr};
};

TEST_F(LauncherTest, AloneWithoutALauncherIsFine) { EXPECT_EQ(problem(1), ""); }

TEST_F(LauncherTest, SlurmWithoutPmixIsNamed) {
  const ScopedVariable slurm("SLURM_NTASKS", "8");
  EXPECT_EQ(problem(8), "");
  const std::string text = problem(1);
  for (const char* part : {"8 tasks", "SLURM_NTASKS", "srun --mpi=pmix", "50-slurm-pmi.sh"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
}

TEST_F(LauncherTest, SrunWithoutAProcessManagerIsNamed) {
  const auto before_start = [] { return problem_of(check_process_manager); };
  const ScopedVariable none[] = {{"PMIX_RANK", nullptr},
                                 {"PMIX_NAMESPACE", nullptr},
                                 {"PMI_RANK", nullptr},
                                 {"PMI_FD", nullptr},
                                 {"SLURM_STEP_NUM_TASKS", nullptr}};
  EXPECT_EQ(before_start(), "");
  const ScopedVariable one("SLURM_STEP_NUM_TASKS", "1");
  EXPECT_EQ(before_start(), "");
  const ScopedVariable several("SLURM_STEP_NUM_TASKS", "4");
  EXPECT_NE(before_start().find("srun --mpi=pmix"), std::string::npos) << before_start();
  const ScopedVariable pmix("PMIX_RANK", "0");
  EXPECT_EQ(before_start(), "");
}

TEST_F(LauncherTest, AnotherMpiIsNamed) {
  {
    const ScopedVariable ompi("OMPI_COMM_WORLD_SIZE", "4");
    EXPECT_EQ(problem(4), "");
    EXPECT_NE(problem(1).find("built against another MPI"), std::string::npos);
  }
  const ScopedVariable pmi("PMI_SIZE", "4");
  EXPECT_NE(problem(1).find("4 ranks (PMI_SIZE)"), std::string::npos);
}

TEST_F(LauncherTest, OneRankOfMpirunInALargerSlurmJobIsFine) {
  const ScopedVariable slurm("SLURM_NTASKS", "8");
  const ScopedVariable ompi("OMPI_COMM_WORLD_SIZE", "1");
  EXPECT_EQ(problem(1), "");
}

TEST(RanksSharingCores, CountsUnboundRanksOfThisHost) {
  const auto world = MpiCommunicator::world();
  EXPECT_EQ(ranks_sharing_cores(*world), world->size());
}

TEST(NodeLocalRank, NumbersTheRanksOfThisHost) {
  const auto world = MpiCommunicator::world();
  EXPECT_EQ(node_local_rank(*world), world->rank());
  EXPECT_EQ(node_local_size(*world), world->size());
}

}  // namespace
}  // namespace trireme::comm
