// Storage that fails, is slow or takes a part of what is written: every rank learns of it, with the
// file, the rank and the reason, and the previous checkpoint stays.
#include <sys/resource.h>
#include <sys/syscall.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <optional>
#include <thread>

#include "../file_size_limit.hpp"
#include "checkpoint/checkpoint.hpp"
#include "checkpoint_fixture.hpp"
#include "core/clock.hpp"

namespace trireme::checkpoint {
namespace {

/// What this process's pwrite() does instead of writing everything, for the life of a scope.
class WriteFault {
 public:
  enum Kind { none, io_error, part, slow };

  explicit WriteFault(Kind kind, int successes = 0) {
    kind_ = kind;
    successes_ = successes;
    calls_ = 0;
  }
  ~WriteFault() { kind_ = none; }

  /// Stands in for pwrite().
  static ssize_t write(int file, const void* data, std::size_t count, off_t offset) {
    const int call = calls_++;
    const bool due = call >= successes_;
    if (kind_ == slow) std::this_thread::sleep_for(std::chrono::milliseconds(170));
    if (due && (kind_ == io_error || (kind_ == part && call % 3 == 0))) {
      errno = kind_ == io_error ? EIO : EINTR;
      return -1;
    }
    if (kind_ == part) count = (count + 1) / 2;
    return ::syscall(SYS_pwrite64, file, data, count, offset);
  }

 private:
  inline static std::atomic<Kind> kind_ = none;
  inline static std::atomic<int> successes_ = 0, calls_ = 0;
};

class StorageFaultTest : public CheckpointTest {
 protected:
  /// "cannot write", the file, the reason and the last rank, which has the fault.
  std::vector<std::string> fault_of_last_rank(const std::string& action,
                                              const std::string& reason) const {
    return {fmt::format("cannot {} '{}.part': {} (rank {} on ", action, path_.string(), reason,
                        size_ - 1)};
  }

  /// Saves with elements to write on every rank.
  void try_save(std::int64_t version) {
    ShardedTensors sharded(small_model(), Sharding::rows, rank_, size_);
    sharded.fill(version);
    save(path_, *world_, kAttributes, kDeck, sharded.tensors);
  }

  bool is_last() const { return rank_ == size_ - 1; }

  void expect_nothing_unfinished() {
    on_first_rank([&] {
      for (const auto& entry : std::filesystem::directory_iterator(path_.parent_path()))
        EXPECT_NE(entry.path().extension(), ".part") << entry.path();
    });
  }
};

TEST_F(StorageFaultTest, AnErrorOfOneRankIsNamedOnAll) {
  save_known(Sharding::rows, 7);
  const std::filesystem::path previous = path_;
  path_ = step_path(path_.parent_path(), 2000);
  for (const int successes : {0, 2}) {
    const WriteFault fault(is_last() ? WriteFault::io_error : WriteFault::none, successes);
    expect_failure<IoError>([&] { try_save(8); },
                            fault_of_last_rank("write", "Input/output error"));
    EXPECT_FALSE(std::filesystem::exists(path_));
    expect_nothing_unfinished();
    EXPECT_EQ(find_latest(path_.parent_path())->path, previous);
  }
}

TEST_F(StorageFaultTest, AfterAFailedBackgroundSaveTheNextSucceeds) {
  save_known(Sharding::rows, 7);
  const std::filesystem::path previous = path_;
  path_ = step_path(path_.parent_path(), 2000);
  const auto backend = device::make_host_backend(1);
  ShardedTensors sharded(small_model(), Sharding::rows, rank_, size_);
  sharded.fill(8);
  BackgroundSave background(*world_, *backend, sharded.tensors);
  {
    const WriteFault fault(is_last() ? WriteFault::io_error : WriteFault::none);
    background.start(path_, kAttributes, kDeck, sharded.tensors);
    expect_failure<IoError>([&] { background.wait(); },
                            fault_of_last_rank("write", "Input/output error"));
  }
  EXPECT_FALSE(background.in_flight());
  expect_nothing_unfinished();
  EXPECT_EQ(find_latest(path_.parent_path())->path, previous);
  background.start(path_, kAttributes, kDeck, sharded.tensors);
  background.wait();
  ShardedTensors read(small_model(), Sharding::columns, rank_, size_);
  load(path_, *world_, read.tensors);
  EXPECT_EQ(read.first_difference(8), "");
}

TEST_F(StorageFaultTest, APreflightMeetsTheErrorOfOneRank) {
  const ShardedTensors sharded(small_model(), Sharding::rows, rank_, size_);
  const WriteFault fault(is_last() ? WriteFault::io_error : WriteFault::none);
  expect_failure<IoError>([&] { preflight_save(path_, *world_, kDeck, sharded.tensors); },
                          fault_of_last_rank("write", "Input/output error"));
  expect_nothing_unfinished();
}

TEST_F(StorageFaultTest, ShortAndInterruptedWritesAreContinued) {
  {
    const WriteFault fault(WriteFault::part);
    try_save(7);
  }
  ShardedTensors sharded(small_model(), Sharding::columns, rank_, size_);
  load(path_, *world_, sharded.tensors);
  EXPECT_EQ(sharded.first_difference(7), "");
}

/// Lets this process open no file more.
class NoDescriptors {
 public:
  NoDescriptors() {
    ::getrlimit(RLIMIT_NOFILE, &old_);
    const int next = ::dup(STDERR_FILENO);
    ::close(next);
    const rlimit limit = {static_cast<rlim_t>(next), old_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
  ~NoDescriptors() { ::setrlimit(RLIMIT_NOFILE, &old_); }

 private:
  rlimit old_{};
};

TEST_F(StorageFaultTest, ARankWithoutDescriptorsIsNamed) {
  if (size_ == 1) GTEST_SKIP() << "rank 0 would meet it in another file";
  on_first_rank([&] { std::filesystem::create_directories(path_.parent_path()); });
  std::optional<NoDescriptors> none;
  if (is_last()) none.emplace();
  expect_failure<IoError>([&] { try_save(7); }, fault_of_last_rank("open", "Too many open files"));
}

TEST_F(StorageFaultTest, PathsMayBeLong) {
  path_ = step_path(folder_ / std::string(120, 'a') / std::string(120, 'b') / "checkpoints", 10);
  ASSERT_GT(path_.string().size(), 255u);
  const ShardedTensors sharded(small_model(), Sharding::rows, rank_, size_);
  preflight_save(path_, *world_, kDeck, sharded.tensors);
  try_save(7);
  EXPECT_EQ(find_latest(path_.parent_path())->path, path_);
}

TEST_F(StorageFaultTest, AFolderThatCannotBeMadeIsAnError) {
  on_first_rank([&] { write_file_atomically(folder_, "a file where the folder should be"); });
  ShardedTensors sharded(small_model(), Sharding::rows, rank_, size_);
  sharded.fill(1);
  expect_failure<IoError>([&] { save(path_, *world_, {}, "", sharded.tensors); },
                          {"cannot create", "Not a directory"});
}

TEST_F(StorageFaultTest, AFullDiskIsOneErrorAndKeepsThePreviousCheckpoint) {
  save_known(Sharding::rows, 7);
  const std::filesystem::path previous = path_;
  path_ = step_path(path_.parent_path(), 2000);
  {
    const FileSizeLimit limit(9000);
    ShardedTensors sharded(small_model(), Sharding::rows, rank_, size_);
    sharded.fill(8);
    expect_failure<IoError>([&] { save(path_, *world_, kAttributes, kDeck, sharded.tensors); },
                            {"step-00002000.h5.part", "File too large"});
  }
  EXPECT_FALSE(std::filesystem::exists(path_));
  EXPECT_FALSE(std::filesystem::exists(path_.string() + ".part"));
  EXPECT_EQ(find_latest(path_.parent_path())->path, previous);
  ShardedTensors sharded(small_model(), Sharding::columns, rank_, size_);
  load(previous, *world_, sharded.tensors);
  EXPECT_EQ(sharded.first_difference(7), "");
  save_known(Sharding::rows, 9);
  EXPECT_EQ(find_latest(path_.parent_path())->path, path_);
}

TEST_F(StorageFaultTest, APreflightFindsWhatASaveWouldAndLeavesNothing) {
  const ShardedTensors sharded(small_model(), Sharding::rows, rank_, size_);
  const auto preflight = [&] { preflight_save(path_, *world_, kDeck, sharded.tensors); };
  const auto expect_nothing_left = [&] {
    on_first_rank([&] { EXPECT_TRUE(std::filesystem::is_empty(path_.parent_path())); });
  };
  preflight();
  expect_nothing_left();
  {
    const FileSizeLimit limit(9000);
    expect_failure<IoError>(preflight, {"cannot reserve", "step-00001000.h5.part"});
  }
  expect_nothing_left();
}

TEST_F(StorageFaultTest, RanksWaitForSlowStorage) {
  if (size_ == 1) GTEST_SKIP() << "one rank does not wait";
  constexpr double kTimeout = 3.0;
  // Column shards: a write for each row.
  ShardedTensors sharded({{"model/weight", {40, 8}, DType::f32}}, Sharding::columns, rank_, size_);
  sharded.fill(1);
  world_->barrier();
  world_->set_timeout(kTimeout);
  {
    const WriteFault slow(rank_ == 0 ? WriteFault::slow : WriteFault::none);
    const Stopwatch watch;
    save(path_, *world_, kAttributes, kDeck, sharded.tensors);
    EXPECT_GT(watch.seconds(), 2 * kTimeout) << "the storage was not slow";
  }
  world_->set_timeout(60 * kTimeout);  // MPI_Finalize keeps to it, too
  EXPECT_EQ(find_latest(path_.parent_path())->path, path_);
}

}  // namespace
}  // namespace trireme::checkpoint

/// Stands in for the system's.
extern "C" ssize_t pwrite(int file, const void* data, std::size_t count, off_t offset) {
  return trireme::checkpoint::WriteFault::write(file, data, count, offset);
}
