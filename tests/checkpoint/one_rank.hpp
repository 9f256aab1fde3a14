// A scratch folder with checkpoints that one rank wrote.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/file.hpp"
#include "sharded_tensors.hpp"

namespace trireme::checkpoint {

inline const std::string kOneRankDeck = "model: {layers: 2}\n";

class OneRankTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() /
              ("trireme_checkpoint_files_" + std::to_string(::getpid()));
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  /// Saves the small model with the known values of `iteration` and returns its path.
  std::filesystem::path save_step(
      std::int64_t iteration, int compression = 0,
      const std::vector<ShardedTensors::Logical>& model = small_model()) {
    ShardedTensors sharded(model, Sharding::first_rank, 0, 1);
    sharded.fill(iteration);
    const std::filesystem::path path = step_path(folder_, iteration);
    save(path, *world_, {{"iteration", iteration}, {"program", std::string("trireme")}},
         kOneRankDeck, sharded.tensors, /*memory=*/nullptr, compression);
    return path;
  }

  std::unique_ptr<comm::MpiCommunicator> world_ = comm::MpiCommunicator::world();
  std::filesystem::path folder_;
};

}  // namespace trireme::checkpoint
