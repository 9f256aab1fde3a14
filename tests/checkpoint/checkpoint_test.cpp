#include "checkpoint/checkpoint.hpp"

#include <limits>

#include "checkpoint_fixture.hpp"

namespace trireme::checkpoint {
namespace {

// ---------------------------------------------------------------------------- what is saved is
// loaded

TEST_F(CheckpointTest, EveryCutLoadsAtEveryOther) {
  for (const Sharding writing : kShardings) {
    save_known(writing);
    for (const Sharding reading : kShardings) {
      ShardedTensors sharded(small_model(), reading, rank_, size_);
      load(path_, *world_, sharded.tensors);
      EXPECT_EQ(sharded.first_difference(7), "")
          << "written with sharding " << static_cast<int>(writing) << ", read as "
          << static_cast<int>(reading);
    }
  }
}

TEST_F(CheckpointTest, TheFileDoesNotDependOnTheLayout) {
  save_known(Sharding::flat);
  std::string first;
  on_first_rank([&] { first = read_file(path_); });
  for (const Sharding sharding : kShardings) {
    save_known(sharding);
    on_first_rank([&] { EXPECT_TRUE(read_file(path_) == first) << static_cast<int>(sharding); });
  }
}

TEST_F(CheckpointTest, HeaderComesBack) {
  save_known();
  ShardedTensors sharded(small_model(), Sharding::flat, rank_, size_);
  const Header header = load(path_, *world_, sharded.tensors);
  Attributes expected = kAttributes;
  expected["format_version"] = kFormatVersion;
  EXPECT_EQ(header.attributes, expected);
  EXPECT_EQ(header.get<std::int64_t>("iteration"), 1000);
  EXPECT_EQ(header.get<double>("loss_scale"), 65536.5);
  EXPECT_THROW(header.get<double>("iteration"), DataError);
  EXPECT_THROW(header.get<double>("absent"), DataError);
  EXPECT_EQ(header.deck, kDeck);
  ASSERT_EQ(header.tensors.size(), small_model().size());
  EXPECT_EQ(header.tensors[2].name, "model/layers/2/attention/qkv/bias");
  EXPECT_EQ(header.tensors[4].name, "model/layers/10/mlp/down/weight") << "10 comes after 2";
}

TEST_F(CheckpointTest, OneGroupCanBeLoadedAlone) {
  save_known();
  std::vector<ShardedTensors::Logical> model = small_model();
  std::erase_if(model, [](const auto& tensor) { return tensor.name.rfind("model/", 0) != 0; });
  ShardedTensors sharded(model, Sharding::replicas, rank_, size_);
  load(path_, *world_, sharded.tensors);
  EXPECT_EQ(sharded.first_difference(7), "");
}

TEST_F(CheckpointTest, LargePartsTravelInSeveralTransfers) {
  const std::vector<ShardedTensors::Logical> large = {{"model/large", {9001, 1999}},
                                                      {"model/small", {3, 2}}};
  ShardedTensors written(large, Sharding::first_rank, rank_, size_);
  for (const LocalTensor& tensor : written.tensors)
    for (const Piece& piece : tensor.pieces)
      for (std::int64_t i = 0; i < count_elements(piece.slabs); ++i)
        static_cast<float*>(piece.data)[i] = static_cast<float>(i % 16777213);
  save(path_, *world_, {}, "", written.tensors);
  ShardedTensors read(large, Sharding::rows, rank_, size_);
  load(path_, *world_, read.tensors);
  const Piece& piece = read.tensors[0].pieces[0];
  const std::int64_t first = piece.slabs[0].row * 1999;
  for (std::int64_t i = 0; i < count_elements(piece.slabs); ++i)
    ASSERT_EQ(static_cast<float*>(piece.data)[i], static_cast<float>((first + i) % 16777213)) << i;
}

TEST_F(CheckpointTest, CompressedElementsLoadInEverySharding) {
  // Several chunks, the last of which is not full, in one and in two axes.
  const std::vector<ShardedTensors::Logical> model = {
      {"model/matrix", {601, 999}}, {"model/vector", {300001}}, {"optimizer/m/small", {3, 2}}};
  ShardedTensors written(model, Sharding::flat, rank_, size_);
  written.fill(4);
  save(path_, *world_, kAttributes, kDeck, written.tensors);
  const auto bytes = std::filesystem::file_size(path_);
  save(path_, *world_, kAttributes, kDeck, written.tensors, /*memory=*/nullptr, /*compression=*/1);
  EXPECT_LT(std::filesystem::file_size(path_), bytes / 10 * 9);
  for (const Sharding reading : kShardings) {
    ShardedTensors read(model, reading, rank_, size_);
    load(path_, *world_, read.tensors);
    EXPECT_EQ(read.first_difference(4), "") << static_cast<int>(reading);
  }
  std::string whole;
  on_first_rank([&] { whole = read_file(path_); });
  const auto backend = device::make_host_backend(1);
  BackgroundSave save(*world_, *backend, written.tensors);
  save.start(path_, kAttributes, kDeck, written.tensors, /*compression=*/1);
  save.wait();
  on_first_rank([&] {
    EXPECT_TRUE(read_file(path_) == whole) << "a background save writes another file";
    EXPECT_FALSE(std::filesystem::exists(path_.string() + ".part.z"));
  });
}

TEST_F(CheckpointTest, SpecialBitPatternsSurvive) {
  std::vector<float> values = {-0.0f, std::numeric_limits<float>::infinity(),
                               std::numeric_limits<float>::denorm_min(), -1e-30f};
  const LocalTensor mine = {
      "model/x", {4}, DType::f32, {{{{0, 4, 0, 1}}, values.data(), rank_ == 0}}};
  save(path_, *world_, {}, "", {mine});
  const std::vector<float> expected = values;
  values.assign(4, 1.0f);
  load(path_, *world_, {mine});
  EXPECT_EQ(std::memcmp(values.data(), expected.data(), sizeof(float) * 4), 0);
}

TEST_F(CheckpointTest, PublishesAndClearsUp) {
  on_first_rank([&] {
    std::filesystem::create_directories(path_.parent_path());
    write_file_atomically(path_.parent_path() / "step-00000990.h5.part", "of a killed run");
  });
  save_known();
  EXPECT_EQ(read_file(path_.parent_path() / "latest"), "step-00001000.h5\n");
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(path_.parent_path())) {
    EXPECT_NE(entry.path().extension(), ".part");
    ++files;
  }
  EXPECT_EQ(files, 2u);
}

// ---------------------------------------------------------------------------- background saves

TEST_F(CheckpointTest, ABackgroundSaveWritesWhatASaveWrites) {
  const auto backend = device::make_host_backend(1);
  for (const Sharding sharding : {Sharding::columns, Sharding::flat, Sharding::replicas}) {
    save_known(sharding);
    std::string expected;
    on_first_rank([&] { expected = read_file(path_); });
    on_first_rank([&] { std::filesystem::remove_all(path_.parent_path()); });
    ShardedTensors sharded(small_model(), sharding, rank_, size_);
    BackgroundSave background(*world_, *backend, sharded.tensors);
    for (const std::int64_t version : {8, 7}) {  // the memory is used again
      sharded.fill(version);
      background.start(path_, kAttributes, kDeck, sharded.tensors);
      EXPECT_TRUE(background.in_flight());
      background.finish_copies();
      sharded.fill(9);  // the next update
      if (version == 8)
        background.wait();
      else
        while (!background.advance()) continue;
      EXPECT_FALSE(background.in_flight());
    }
    on_first_rank([&] {
      EXPECT_TRUE(read_file(path_) == expected) << static_cast<int>(sharding);
      EXPECT_EQ(find_latest(path_.parent_path())->path, path_);
    });
  }
}

// ---------------------------------------------------------------------------- wrong tables

TEST_F(CheckpointTest, UnownedElementsAreFound) {
  ShardedTensors sharded(small_model(), Sharding::first_rank, rank_, size_);
  sharded.fill(7);
  if (rank_ == 0) sharded.tensors[1].pieces[0].slabs[0].rows -= 1;
  expect_failure<InternalError>(
      [&] { save(path_, *world_, kAttributes, kDeck, sharded.tensors); },
      {"'model/layers/2/attention/qkv/weight' [36, 12]", "420 elements are owned, not 432"});
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(CheckpointTest, AGapHiddenByAnOverlapIsFound) {
  ShardedTensors sharded(small_model(), Sharding::first_rank, rank_, size_);
  sharded.fill(7);
  if (rank_ == 0) {
    Piece& piece = sharded.tensors[2].pieces[0];
    piece.slabs = {{0, 20, 0, 1}};
    sharded.tensors[2].pieces.push_back({{{19, 16, 0, 1}}, piece.data, true});
  }
  expect_failure<InternalError>(
      [&] { save(path_, *world_, kAttributes, kDeck, sharded.tensors); },
      {"'model/layers/2/attention/qkv/bias'", "two owners and others none"});
}

TEST_F(CheckpointTest, MalformedBoxesAreFoundOnEveryRank) {
  ShardedTensors outside(small_model(), Sharding::first_rank, rank_, size_);
  if (rank_ == 0) outside.tensors[0].pieces[0].slabs[0].column = 1;
  expect_failure<InternalError>([&] { save(path_, *world_, {}, "", outside.tensors); },
                                {"'model/embedding/word' [23, 12]", "not inside"});
  ShardedTensors disordered(small_model(), Sharding::first_rank, rank_, size_);
  if (rank_ == 0) disordered.tensors[0].pieces[0].slabs = {{10, 13, 0, 12}, {0, 10, 0, 12}};
  expect_failure<InternalError>([&] { save(path_, *world_, {}, "", disordered.tensors); },
                                {"'model/embedding/word'", "does not come after"});
}

TEST_F(CheckpointTest, DifferentTablesAreFound) {
  if (size_ == 1) GTEST_SKIP() << "one rank has one table";
  ShardedTensors sharded(small_model(), Sharding::rows, rank_, size_);
  if (rank_ == size_ - 1) sharded.tensors.pop_back();
  expect_failure<InternalError>([&] { save(path_, *world_, {}, "", sharded.tensors); },
                                {"list different tensors"});
}

// ---------------------------------------------------------------------------- wrong files

TEST_F(CheckpointTest, OtherModelsAreRefused) {
  save_known();
  std::vector<ShardedTensors::Logical> model = small_model();
  const auto load_model = [&] {
    ShardedTensors sharded(model, Sharding::rows, rank_, size_);
    load(path_, *world_, sharded.tensors);
  };
  model[0].shape = {24, 12};
  expect_failure<DataError>(load_model, {path_.string(), "'model/embedding/word'", "[23, 12]",
                                         "this model's has [24, 12]"});
  model = small_model();
  model[0].dtype = DType::f64;
  expect_failure<DataError>(load_model, {"'model/embedding/word' is fp32", "model's is fp64"});
  model = small_model();
  model.push_back({"model/layers/11/mlp/down/weight", {12, 48}});
  expect_failure<DataError>(load_model, {"has no tensor 'model/layers/11/mlp/down/weight'"});
  model = small_model();
  model.erase(model.begin() + 3);
  expect_failure<DataError>(
      load_model, {"'model/layers/10/mlp/down/weight' [12, 48]", "which this model does not have"});
}

TEST_F(CheckpointTest, DamagedElementsAreFound) {
  save_known();
  on_first_rank([&] {
    std::string content = read_file(path_);
    const auto value = static_cast<float>(known_value("model/layers/10/mlp/down/weight", 100, 7));
    const std::string pattern(reinterpret_cast<const char*>(&value), sizeof value);
    const std::size_t at = content.find(pattern);
    ASSERT_NE(at, std::string::npos);
    content[at + 1] = static_cast<char>(content[at + 1] ^ 4);
    write_file_atomically(path_, content);
  });
  expect_load_failure({path_.string(), "'model/layers/10/mlp/down/weight' is damaged", "checksum"});
}

TEST_F(CheckpointTest, TruncatedFilesAreFound) {
  save_known();
  const auto shorten = [&](std::uintmax_t bytes) {
    on_first_rank(
        [&] { std::filesystem::resize_file(path_, std::filesystem::file_size(path_) - bytes); });
  };
  shorten(1);
  expect_load_failure({path_.string(), "not a readable checkpoint", "has lost its end"});
  shorten(1000);
  expect_load_failure({path_.string(), "not a readable checkpoint", "it has lost its end"});
  on_first_rank([&] { std::filesystem::resize_file(path_, 0); });
  expect_load_failure({path_.string(), "not a readable checkpoint"});
}

TEST_F(CheckpointTest, ForeignFilesAreFound) {
  on_first_rank([&] {
    std::filesystem::create_directories(path_.parent_path());
    write_file_atomically(path_, "This is a poem, not an HDF5 file.");
  });
  expect_load_failure({path_.string(), "not a readable checkpoint", "it is no HDF5 file"});
  ShardedTensors sharded(small_model(), Sharding::rows, rank_, size_);
  expect_failure<IoError>([&] { load(folder_ / "absent.h5", *world_, sharded.tensors); },
                          {"absent.h5': No such file"});
}

}  // namespace
}  // namespace trireme::checkpoint
