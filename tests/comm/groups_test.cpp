#include "comm/mpi/mpi_communicator.hpp"

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "core/error.hpp"

namespace trireme::comm {
namespace {

TEST(Agree, RunsTheStepOnEveryRank) {
  const auto world = MpiCommunicator::world();
  int runs = 0;
  agree(*world, [&] { ++runs; });
  EXPECT_EQ(runs, 1);
}

TEST(Agree, ThrowsTheFirstFailureOnEveryRank) {
  const auto world = MpiCommunicator::world();
  const int last = world->size() - 1;
  try {
    agree(*world, [&] {
      if (world->rank() == last) throw IoError("disk of rank {} is full", last);
    });
    FAIL() << "rank " << world->rank() << " did not learn of the failure";
  } catch (const IoError& error) {
    EXPECT_EQ(error.what(), "disk of rank " + std::to_string(last) + " is full");
  }
  try {
    agree(*world, [&] { throw DataError("bad file, says rank {}", world->rank()); });
    FAIL();
  } catch (const DataError& error) {
    EXPECT_STREQ(error.what(), "bad file, says rank 0");
  }
  EXPECT_EQ(world->all_reduce(1.0, Reduce::sum), world->size());
}

TEST(Agree, ForeignExceptionsBecomeInternalErrors) {
  const auto world = MpiCommunicator::world();
  if (world->size() == 1) GTEST_SKIP() << "one rank throws what its step throws";
  EXPECT_THROW(agree(*world, [] { throw std::bad_alloc(); }), InternalError);
}

TEST(MakeGroups, ConnectsEachAxisOfTheLayout) {
  auto world = MpiCommunicator::world();
  const int size = world->size(), rank = world->rank();
  std::map<Axis, int> sizes;
  const auto connect = [&](Axis axis, std::unique_ptr<MpiCommunicator> ranks) {
    sizes[axis] = ranks->size();
    EXPECT_EQ(ranks->name(), name_of(axis));
    return ranks;
  };
  make_groups(std::move(world), {.pipeline = size, .partition = std::vector<int>(size, 1)},
              connect);
  std::map<Axis, int> expected = {{Axis::tensor, 1}, {Axis::data, 1}, {Axis::pipeline, size}};
  if (size > 1 && (rank == 0 || rank == size - 1)) expected[Axis::embedding] = 2;
  EXPECT_EQ(sizes, expected);
}

}  // namespace
}  // namespace trireme::comm
