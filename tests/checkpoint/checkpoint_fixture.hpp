// The fixture of tests in which all ranks save and load checkpoints together.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "checkpoint/file.hpp"
#include "core/error.hpp"
#include "core/files.hpp"
#include "sharded_tensors.hpp"

namespace trireme::checkpoint {

inline const Attributes kAttributes = {{"iteration", std::int64_t{1000}},
                                       {"loss_scale", 65536.5},
                                       {"consumed_samples", std::int64_t{1} << 40},
                                       {"program", std::string("trireme 0.1")},
                                       {"note", std::string("")}};
inline const std::string kDeck = "model:\n  layers: 2  # zwölf\n";

class CheckpointTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string mine = (std::filesystem::temp_directory_path() /
                              fmt::format("trireme_checkpoint_test_{}", ::getpid()))
                                 .string();
    folder_ = world_->all_gather_text(mine)[0];
    path_ = step_path(folder_ / "checkpoints", 1000);
  }
  void TearDown() override {
    world_->barrier();
    if (rank_ == 0) std::filesystem::remove_all(folder_);
  }

  ShardedTensors hold(Sharding sharding) const {
    return ShardedTensors(small_model(), sharding, rank_, size_);
  }

  void save_known(Sharding sharding = Sharding::rows, std::int64_t version = 7) {
    ShardedTensors sharded(small_model(), sharding, rank_, size_);
    sharded.fill(version);
    save(path_, *world_, kAttributes, kDeck, sharded.tensors);
  }

  /// Runs `change` on rank 0 while the others wait.
  template <typename Change>
  void on_first_rank(Change&& change) {
    world_->barrier();
    if (rank_ == 0) change();
    world_->barrier();
  }

  /// Expects that `step` throws an `Expected` whose text has all of `parts`, on every rank.
  template <typename Expected, typename Step>
  void expect_failure(Step&& step, const std::vector<std::string>& parts) {
    try {
      step();
      ADD_FAILURE() << "rank " << rank_ << " met no error";
    } catch (const Expected& error) {
      const std::string text = error.what();
      for (const std::string& part : parts)
        EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in: " << text;
    }
    EXPECT_EQ(world_->all_reduce(1.0, comm::Reduce::sum), size_) << "the ranks are out of step";
  }

  void expect_load_failure(const std::vector<std::string>& parts) {
    ShardedTensors sharded(small_model(), Sharding::columns, rank_, size_);
    expect_failure<DataError>([&] { load(path_, *world_, sharded.tensors); }, parts);
  }

  std::unique_ptr<comm::MpiCommunicator> world_ = comm::MpiCommunicator::world();
  const int rank_ = world_->rank();
  const int size_ = world_->size();
  std::filesystem::path folder_;
  std::filesystem::path path_;
};

}  // namespace trireme::checkpoint
