#include "checkpoint/checkpoint.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <limits>
#include <thread>
#include <utility>

#include "checkpoint/folder.hpp"
#include "core/error.hpp"
#include "core/files.hpp"
#include "holding.hpp"

namespace trireme::checkpoint {
namespace {

const Attributes kAttributes = {{"iteration", std::int64_t{1000}},
                                {"loss_scale", 65536.5},
                                {"consumed_samples", std::int64_t{1} << 40},
                                {"program", std::string("trireme 0.1")},
                                {"note", std::string("")}};
const std::string kDeck = "model:\n  layers: 2  # zwölf\n";

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

  Holding hold(Cut cut) const { return Holding(small_model(), cut, rank_, size_); }

  void save_known(Cut cut = Cut::rows, std::int64_t version = 7) {
    Holding holding(small_model(), cut, rank_, size_);
    holding.fill(version);
    save(path_, *world_, kAttributes, kDeck, holding.tensors);
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
    Holding holding(small_model(), Cut::columns, rank_, size_);
    expect_failure<DataError>([&] { load(path_, *world_, holding.tensors); }, parts);
  }

  std::unique_ptr<comm::MpiCommunicator> world_ = comm::MpiCommunicator::world();
  const int rank_ = world_->rank();
  const int size_ = world_->size();
  std::filesystem::path folder_;
  std::filesystem::path path_;
};

// ---------------------------------------------------------------------------- what is saved is
// loaded

TEST_F(CheckpointTest, EveryCutLoadsAtEveryOther) {
  for (const Cut writing : kCuts) {
    save_known(writing);
    for (const Cut reading : kCuts) {
      Holding holding(small_model(), reading, rank_, size_);
      load(path_, *world_, holding.tensors);
      EXPECT_EQ(holding.first_difference(7), "") << "written as cut " << static_cast<int>(writing)
                                                 << ", read as " << static_cast<int>(reading);
    }
  }
}

TEST_F(CheckpointTest, TheFileDoesNotDependOnTheLayout) {
  save_known(Cut::flat);
  std::string first;
  on_first_rank([&] { first = read_file(path_); });
  for (const Cut cut : kCuts) {
    save_known(cut);
    on_first_rank([&] { EXPECT_TRUE(read_file(path_) == first) << static_cast<int>(cut); });
  }
}

TEST_F(CheckpointTest, HeaderComesBack) {
  save_known();
  Holding holding(small_model(), Cut::flat, rank_, size_);
  const Header header = load(path_, *world_, holding.tensors);
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
  std::vector<Holding::Logical> model = small_model();
  std::erase_if(model, [](const auto& tensor) { return tensor.name.rfind("model/", 0) != 0; });
  Holding holding(model, Cut::replicas, rank_, size_);
  load(path_, *world_, holding.tensors);
  EXPECT_EQ(holding.first_difference(7), "");
}

TEST_F(CheckpointTest, LargePartsTravelInSeveralTransfers) {
  const std::vector<Holding::Logical> large = {{"model/large", {9001, 1999}},
                                               {"model/small", {3, 2}}};
  Holding written(large, Cut::first_rank, rank_, size_);
  for (const LocalTensor& tensor : written.tensors)
    for (const Piece& piece : tensor.pieces)
      for (std::int64_t i = 0; i < count_elements(piece.boxes); ++i)
        static_cast<float*>(piece.data)[i] = static_cast<float>(i % 16777213);
  save(path_, *world_, {}, "", written.tensors);
  Holding read(large, Cut::rows, rank_, size_);
  load(path_, *world_, read.tensors);
  const Piece& piece = read.tensors[0].pieces[0];
  const std::int64_t first = piece.boxes[0].row * 1999;
  for (std::int64_t i = 0; i < count_elements(piece.boxes); ++i)
    ASSERT_EQ(static_cast<float*>(piece.data)[i], static_cast<float>((first + i) % 16777213)) << i;
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

// ---------------------------------------------------------------------------- wrong tables

TEST_F(CheckpointTest, UnownedElementsAreFound) {
  Holding holding(small_model(), Cut::first_rank, rank_, size_);
  holding.fill(7);
  if (rank_ == 0) holding.tensors[1].pieces[0].boxes[0].rows -= 1;
  expect_failure<InternalError>(
      [&] { save(path_, *world_, kAttributes, kDeck, holding.tensors); },
      {"'model/layers/2/attention/qkv/weight' [36, 12]", "420 elements are owned, not 432"});
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(CheckpointTest, AGapHiddenByAnOverlapIsFound) {
  Holding holding(small_model(), Cut::first_rank, rank_, size_);
  holding.fill(7);
  if (rank_ == 0) {
    Piece& piece = holding.tensors[2].pieces[0];
    piece.boxes = {{0, 20, 0, 1}};
    holding.tensors[2].pieces.push_back({{{19, 16, 0, 1}}, piece.data, true});
  }
  expect_failure<InternalError>(
      [&] { save(path_, *world_, kAttributes, kDeck, holding.tensors); },
      {"'model/layers/2/attention/qkv/bias'", "two owners and others none"});
}

TEST_F(CheckpointTest, MalformedBoxesAreFoundOnEveryRank) {
  Holding outside(small_model(), Cut::first_rank, rank_, size_);
  if (rank_ == 0) outside.tensors[0].pieces[0].boxes[0].column = 1;
  expect_failure<InternalError>([&] { save(path_, *world_, {}, "", outside.tensors); },
                                {"'model/embedding/word' [23, 12]", "not inside"});
  Holding disordered(small_model(), Cut::first_rank, rank_, size_);
  if (rank_ == 0) disordered.tensors[0].pieces[0].boxes = {{10, 13, 0, 12}, {0, 10, 0, 12}};
  expect_failure<InternalError>([&] { save(path_, *world_, {}, "", disordered.tensors); },
                                {"'model/embedding/word'", "does not come after"});
}

TEST_F(CheckpointTest, DifferentTablesAreFound) {
  if (size_ == 1) GTEST_SKIP() << "one rank has one table";
  Holding holding(small_model(), Cut::rows, rank_, size_);
  if (rank_ == size_ - 1) holding.tensors.pop_back();
  expect_failure<InternalError>([&] { save(path_, *world_, {}, "", holding.tensors); },
                                {"list different tensors"});
}

// ---------------------------------------------------------------------------- wrong files

TEST_F(CheckpointTest, OtherModelsAreRefused) {
  save_known();
  std::vector<Holding::Logical> model = small_model();
  const auto load_model = [&] {
    Holding holding(model, Cut::rows, rank_, size_);
    load(path_, *world_, holding.tensors);
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
  on_first_rank(
      [&] { std::filesystem::resize_file(path_, std::filesystem::file_size(path_) - 100); });
  expect_load_failure({path_.string(), "not a readable checkpoint", "truncated file"});
  on_first_rank([&] { std::filesystem::resize_file(path_, 0); });
  expect_load_failure({path_.string(), "not a readable checkpoint"});
}

TEST_F(CheckpointTest, ForeignFilesAreFound) {
  on_first_rank([&] {
    std::filesystem::create_directories(path_.parent_path());
    write_file_atomically(path_, "This is a poem, not an HDF5 file.");
  });
  expect_load_failure({path_.string(), "not a readable checkpoint", "file signature not found"});
  Holding holding(small_model(), Cut::rows, rank_, size_);
  expect_failure<IoError>([&] { load(folder_ / "absent.h5", *world_, holding.tensors); },
                          {"absent.h5': No such file"});
}

// ---------------------------------------------------------------------------- disks that fail

TEST_F(CheckpointTest, AFolderThatCannotBeMadeIsAnError) {
  on_first_rank([&] { write_file_atomically(folder_, "a file where the folder should be"); });
  Holding holding(small_model(), Cut::rows, rank_, size_);
  holding.fill(1);
  expect_failure<IoError>([&] { save(path_, *world_, {}, "", holding.tensors); },
                          {"cannot make", "Not a directory"});
}

/// Limits the size of the files that this process can write, as a full disk or a quota does.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &old_);
    handler_ = std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {bytes, old_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &old_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit old_{};
  void (*handler_)(int) = nullptr;
};

TEST_F(CheckpointTest, AFullDiskIsOneErrorAndKeepsThePreviousCheckpoint) {
  save_known(Cut::rows, 7);
  const std::filesystem::path previous = path_;
  path_ = step_path(path_.parent_path(), 2000);
  {
    const FileSizeLimit limit(9000);
    Holding holding(small_model(), Cut::rows, rank_, size_);
    holding.fill(8);
    expect_failure<IoError>([&] { save(path_, *world_, kAttributes, kDeck, holding.tensors); },
                            {"step-00002000.h5.part", "File too large"});
  }
  EXPECT_FALSE(std::filesystem::exists(path_));
  EXPECT_FALSE(std::filesystem::exists(path_.string() + ".part"));
  EXPECT_EQ(find_latest(path_.parent_path())->path, previous);
  Holding holding(small_model(), Cut::columns, rank_, size_);
  load(previous, *world_, holding.tensors);
  EXPECT_EQ(holding.first_difference(7), "");
  save_known(Cut::rows, 9);
  EXPECT_EQ(find_latest(path_.parent_path())->path, path_);
}

TEST_F(CheckpointTest, ARehearsalFindsWhatASaveWouldAndLeavesNothing) {
  const Holding holding(small_model(), Cut::rows, rank_, size_);
  const auto rehearse = [&] { rehearse_save(path_, *world_, kDeck, holding.tensors); };
  const auto expect_nothing_left = [&] {
    on_first_rank([&] { EXPECT_TRUE(std::filesystem::is_empty(path_.parent_path())); });
  };
  rehearse();
  expect_nothing_left();
  {
    const FileSizeLimit limit(9000);
    expect_failure<IoError>(rehearse, {"cannot reserve", "step-00001000.h5.part"});
  }
  expect_nothing_left();
}

/// Makes the first sync of this process take `seconds`.
class SlowSync {
 public:
  explicit SlowSync(double seconds) { seconds_ = seconds; }
  ~SlowSync() { seconds_ = 0.0; }
  static double take() { return std::exchange(seconds_, 0.0); }

 private:
  inline static double seconds_ = 0.0;
};

TEST_F(CheckpointTest, RanksWaitForSlowStorage) {
  if (size_ == 1) GTEST_SKIP() << "one rank waits for nobody";
  constexpr double kTimeout = 2.0;
  const Shape shape{15'000'000};  // six seconds at 10 MB/s
  Holding holding({{"model/weight", shape, DType::f32}}, Cut::first_rank, rank_, size_);
  holding.fill(1);
  world_->barrier();
  world_->set_timeout(kTimeout);
  {
    const SlowSync sync(rank_ == 0 ? 1.5 * kTimeout : 0.0);
    save(path_, *world_, kAttributes, kDeck, holding.tensors);
  }
  world_->set_timeout(60 * kTimeout);  // MPI_Finalize keeps to it, too
  EXPECT_EQ(find_latest(path_.parent_path())->path, path_);
}

}  // namespace
}  // namespace trireme::checkpoint

/// Stands in for the system's.
extern "C" int fsync(int file) {
  const double seconds = trireme::checkpoint::SlowSync::take();
  if (seconds > 0.0) std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  return static_cast<int>(::syscall(SYS_fsync, file));
}
