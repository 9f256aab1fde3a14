// Under mpirun: saving is collective, what is tested is not.
#include "generate/decoder.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "../scratch_folder.hpp"
#include "checkpoint/checkpoint.hpp"
#include "checkpoint/file.hpp"
#include "generate/generator.hpp"
#include "tiny_gpt.hpp"

namespace trireme::generate {
namespace {

namespace fs = std::filesystem;

/// A run's folder with one checkpoint of the tiny model in it.
class CheckpointModelTest : public testing::Test {
 protected:
  CheckpointModelTest() { save(path_); }

  void save(const fs::path& path) {
    save(path, checkpoint::weight_tensors(gpt_.parameters, /*first_data_rank=*/true));
  }
  void save(const fs::path& path, const std::vector<checkpoint::LocalTensor>& tensors) {
    const auto world = comm::MpiCommunicator::world();
    checkpoint::save(path, *world, {{"iteration", std::int64_t{20}}}, "the deck", tensors);
  }

  /// The message of the DataError that reading the weights under `config` throws.
  std::string problem(const fs::path& path, const model::Gpt2Config& config) {
    try {
      CheckpointModel(path).weights(gpt2_spec(config), *gpt_.backend);
      return "";
    } catch (const DataError& error) {
      return error.what();
    }
  }

  TinyGpt gpt_;
  const ScratchFolder scratch_;
  const fs::path folder_ = scratch_.path();
  const fs::path path_ = checkpoint::step_path(folder_ / "checkpoints", 20);
};

TEST_F(CheckpointModelTest, GeneratesWhatTheSavedModelGenerates) {
  const CheckpointModel saved(path_);
  EXPECT_EQ(saved.vocab(), gpt_.config.vocab);
  EXPECT_EQ(saved.header().deck, "the deck");
  const auto parameters = saved.weights(gpt_.spec, *gpt_.backend);
  const std::vector<std::int32_t> prompt = {1, 2, 3};
  for (const Sampling& sampling : {Sampling{.greedy = true}, Sampling{.top_k = 10}}) {
    const Request request{.tokens = 20, .sampling = sampling};
    Decoder original(*gpt_.backend, gpt_.parameters, gpt_.spec);
    Decoder loaded(*gpt_.backend, *parameters, gpt_.spec);
    const auto ids = Generator(loaded, request).generate(prompt).ids;
    EXPECT_EQ(ids.size(), 20u);
    EXPECT_EQ(ids, Generator(original, request).generate(prompt).ids);
  }
}

TEST_F(CheckpointModelTest, FilesThatAreNoCheckpointAreDataErrors) {
  std::ofstream(folder_ / "foreign.h5") << "no HDF5 at all";
  EXPECT_THROW(CheckpointModel(folder_ / "foreign.h5"), DataError);
}

TEST_F(CheckpointModelTest, OtherModelsAreDataErrors) {
  model::Gpt2Config wider = gpt_.config;
  wider.ffn = 48;
  EXPECT_EQ(problem(path_, gpt_.config), "");
  EXPECT_EQ(problem(path_, wider),
            fmt::format("'{}': tensor 'model/layers/0/mlp/up/bias' has shape [40], but its deck's "
                        "model needs [48]",
                        path_.string()));
  model::Gpt2Config deeper = gpt_.config;
  deeper.layers = 3;
  EXPECT_NE(problem(path_, deeper).find("has no tensor 'model/layers/2/"), std::string::npos);

  const fs::path other = checkpoint::step_path(folder_ / "other", 1);
  auto tensors = checkpoint::weight_tensors(gpt_.parameters, /*first_data_rank=*/true);
  std::erase_if(tensors, [](const auto& tensor) { return tensor.name == "model/embedding/word"; });
  save(other, tensors);
  EXPECT_EQ(problem(other, gpt_.config),
            fmt::format("'{}' has no tensor 'model/embedding/word'", other.string()));
  EXPECT_THROW(CheckpointModel(other).vocab(), DataError);
}

}  // namespace
}  // namespace trireme::generate
