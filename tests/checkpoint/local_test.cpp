// Local checkpoints: a shard of each rank, copies on other nodes, and the newest that is whole.
#include "checkpoint/local/shard.hpp"

#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "../message_of.hpp"
#include "checkpoint/checkpoint.hpp"
#include "checkpoint_fixture.hpp"
#include "core/clock.hpp"
#include "core/files.hpp"

namespace trireme::checkpoint {
namespace {

/// Seconds that a message between two nodes takes, as long as one lives.
class SlowNetwork {
 public:
  explicit SlowNetwork(std::chrono::milliseconds delay) { delay_ = delay; }
  ~SlowNetwork() { delay_ = std::chrono::milliseconds(0); }
  static void wait() { std::this_thread::sleep_for(delay_.load()); }

 private:
  inline static std::atomic<std::chrono::milliseconds> delay_{};
};

class LocalCheckpoint : public CheckpointTest {
 protected:
  void SetUp() override {
    CheckpointTest::SetUp();
    // Each rank stands for a node, which has its own disk.
    disk_ = folder_ / std::to_string(rank_);
    held_.fill(/*version=*/7);
  }
  std::filesystem::path save(std::int64_t iteration) const {
    const auto path = shard_path(disk_, iteration, rank_);
    write_shard(path,
                {.iteration = iteration,
                 .rank = rank_,
                 .ranks = size_,
                 .attributes = kAttributes,
                 .deck = kDeck},
                held_.tensors, [] {});
    return path;
  }
  std::optional<ShardHeader> find(std::int64_t newer_than = -1) {
    return find_shards(
        disk_, *world_, newer_than,
        [](const ShardHeader& shard) {
          if (shard.deck != kDeck) throw DeckError("another deck");
          return true;
        },
        note_);
  }
  void start(BackgroundSave& background, std::int64_t iteration,
             const std::vector<int>& partners) const {
    background.start_local(disk_,
                           {.iteration = iteration,
                            .rank = rank_,
                            .ranks = size_,
                            .attributes = kAttributes,
                            .deck = kDeck},
                           held_.tensors, partners);
  }
  /// The iterations of the shards in `disk_`.
  std::set<std::int64_t> iterations() const {
    std::set<std::int64_t> found;
    for (const auto& [name, path] : list_shards(disk_)) found.insert(name.iteration);
    return found;
  }
  /// The copy of `iteration` on this rank's disk, another rank's.
  std::filesystem::path copy_of(std::int64_t iteration) const {
    return shard_path(disk_, iteration, (rank_ + size_ - 1) % size_, /*copy=*/true);
  }
  /// Saves `iteration`, whose last copy fails.
  void save_without_copies(BackgroundSave& background, std::int64_t iteration) const {
    // A folder in the place of the last rank's copy.
    if (rank_ == size_ - 1) std::filesystem::create_directories(copy_of(iteration) / "x");
    start(background, iteration, own_nodes());
    EXPECT_THROW(background.wait(), IoError);
    EXPECT_FALSE(background.in_flight());
    if (rank_ == size_ - 1) std::filesystem::remove_all(copy_of(iteration));
  }
  std::vector<int> own_nodes() const {
    std::vector<int> nodes;
    for (int rank = 0; rank < size_; ++rank) nodes.push_back(rank);
    return nodes;
  }

  ShardedTensors held_{small_model(), Sharding::flat, rank_, size_};
  std::filesystem::path disk_;
  std::string note_;
};

TEST_F(LocalCheckpoint, AShardGivesBackEveryBit) {
  const auto path = save(3);
  verify_shard(path);
  const ShardHeader header = read_shard_header(path);
  EXPECT_EQ(header.attributes, kAttributes);
  EXPECT_EQ(header.deck, kDeck);
  ShardedTensors read(small_model(), Sharding::flat, rank_, size_);
  read_shard(path, read.tensors, nullptr);
  EXPECT_EQ(read.first_difference(/*version=*/7), "");
}

TEST_F(LocalCheckpoint, AnotherLayoutIsRefused) {
  const auto path = save(3);
  ShardedTensors other(small_model(), Sharding::rows, rank_, size_ + 1);
  EXPECT_NE(message_of<DataError>([&] {
              read_shard(path, other.tensors, nullptr);
            }).find("belongs to another layout"),
            std::string::npos);
}

TEST_F(LocalCheckpoint, EveryFlippedByteAndEveryTruncationIsFound) {
  const auto path = save(3);
  const std::string whole = read_file(path);
  for (std::size_t i = 0; i < whole.size(); i += 1 + whole.size() / 300) {
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ 4);
    std::ofstream(path, std::ios::binary) << damaged;
    EXPECT_NE(message_of<DataError>([&] { verify_shard(path); }), "") << i;
    std::ofstream(path, std::ios::binary) << whole.substr(0, i);
    EXPECT_NE(message_of<DataError>([&] { verify_shard(path); }), "") << i;
  }
}

TEST_F(LocalCheckpoint, ADamagedTensorIsNamed) {
  const auto path = save(3);
  const ShardHeader header = read_shard_header(path);
  const std::string whole = read_file(path);
  ASSERT_EQ(header.tensors.size(), header.pieces.size());
  // The payload ends before the hashes of the pieces and that of the structure.
  std::size_t end = whole.size() - 8 * (header.pieces.size() + 1);
  for (std::size_t i = header.pieces.size(); i-- > 0;) {
    if (header.pieces[i] == 0) continue;
    std::string damaged = whole;
    damaged[end - 1] = static_cast<char>(damaged[end - 1] ^ 1);
    write_file_atomically(path, damaged);
    EXPECT_NE(
        message_of<DataError>([&] {
          verify_shard(path);
        }).find("tensors are damaged, their checksums do not match: '" + header.tensors[i] + "'"),
        std::string::npos)
        << header.tensors[i];
    end -= static_cast<std::size_t>(header.pieces[i]);
  }
}

TEST_F(LocalCheckpoint, AShardOfAnEarlierVersionIsRead) {
  // Without names and hashes of the pieces, and with one hash of the header and all pieces.
  const auto path = save(3);
  const std::string whole = read_file(path);
  const ShardHeader header = read_shard_header(path);
  const std::size_t begin = whole.find('{');
  std::int64_t bytes = 0;
  std::memcpy(&bytes, whole.data() + begin - sizeof bytes, sizeof bytes);
  auto json = nlohmann::json::parse(whole.substr(begin, static_cast<std::size_t>(bytes)));
  json.erase("tensors");
  const std::string text = json.dump();
  const std::size_t payload = begin + static_cast<std::size_t>(bytes);
  ContentHash hash;
  hash.add(text);
  std::size_t at = payload;
  for (const std::int64_t piece : header.pieces) {
    if (piece > 0) hash.add(whole.data() + at, static_cast<std::size_t>(piece));
    at += static_cast<std::size_t>(piece);
  }
  const auto size = static_cast<std::int64_t>(text.size());
  const std::uint64_t value = hash.value();
  write_file_atomically(path, whole.substr(0, begin - sizeof bytes) +
                                  std::string(reinterpret_cast<const char*>(&size), sizeof size) +
                                  text + whole.substr(payload, at - payload) +
                                  std::string(reinterpret_cast<const char*>(&value), sizeof value));
  ShardedTensors read(small_model(), Sharding::flat, rank_, size_);
  read_shard(path, read.tensors, nullptr);
  EXPECT_EQ(read.first_difference(/*version=*/7), "");
}

TEST_F(LocalCheckpoint, TheNewestOfAllRanksIsFound) {
  save(3);
  save(5);
  if (rank_ == 0) save(8);
  const auto found = find();
  ASSERT_TRUE(found);
  EXPECT_EQ(found->iteration, size_ == 1 ? 8 : 5);
  EXPECT_EQ(found->rank, rank_);
  EXPECT_EQ(note_.find("iteration 8 lacks the shards of") != std::string::npos, size_ > 1) << note_;
  EXPECT_FALSE(find(/*newer_than=*/8));
}

TEST_F(LocalCheckpoint, ADamagedShardGivesWayToAnOlderOne) {
  save(3);
  const auto newest = save(5);
  if (rank_ == size_ - 1) std::filesystem::resize_file(newest, 100);
  world_->barrier();
  const auto found = find();
  ASSERT_TRUE(found);
  EXPECT_EQ(found->iteration, 3);
  EXPECT_NE(note_.find("is not a readable local checkpoint"), std::string::npos) << note_;
}

TEST_F(LocalCheckpoint, ADamagedDeckIsNotRead) {
  save(3);
  const auto newest = save(5);
  std::string content = read_file(newest);
  const std::size_t deck = content.find("layers: 2");
  ASSERT_NE(deck, std::string::npos);
  content[deck] ^= 1;
  write_file_atomically(newest, content);
  world_->barrier();
  const auto found = find();
  ASSERT_TRUE(found);
  EXPECT_EQ(found->iteration, 3);
  EXPECT_NE(note_.find("its structure is damaged: its checksum does not match"), std::string::npos)
      << note_;
}

TEST_F(LocalCheckpoint, ANodeThatLostItsDiskGetsTheCopy) {
  save(3);
  exchange_copies(disk_, 3, *world_, own_nodes());
  if (size_ > 1 && rank_ == size_ - 1) std::filesystem::remove_all(disk_);
  world_->barrier();
  const auto found = find();
  ASSERT_TRUE(found);
  EXPECT_EQ(found->iteration, 3);
  ShardedTensors read(small_model(), Sharding::flat, rank_, size_);
  read_shard(*find_shard(disk_, 3, rank_), read.tensors, nullptr);
  EXPECT_EQ(read.first_difference(/*version=*/7), "");
  EXPECT_EQ(note_, "");
}

TEST_F(LocalCheckpoint, FailedCopiesKeepTheNewestOneWithCopies) {
  if (size_ == 1) GTEST_SKIP() << "needs a second node";
  const auto backend = device::make_host_backend(1);
  {
    BackgroundSave background(*world_, *backend, held_.tensors, /*replicas=*/true);
    for (const std::int64_t iteration : {1, 2}) {
      start(background, iteration, own_nodes());
      background.wait();
    }
    EXPECT_EQ(iterations(), (std::set<std::int64_t>{1, 2}));
  }
  // After a restart, which finds what has copies in the files.
  BackgroundSave background(*world_, *backend, held_.tensors, /*replicas=*/true);
  for (const std::int64_t iteration : {3, 4, 5}) {
    save_without_copies(background, iteration);
    EXPECT_EQ(iterations(), (std::set<std::int64_t>{2, iteration}));
    EXPECT_TRUE(std::filesystem::exists(copy_of(2)));
    for (const auto& entry : std::filesystem::directory_iterator(disk_))
      EXPECT_NE(entry.path().extension(), ".part") << entry.path();
  }
  start(background, 6, own_nodes());
  background.wait();
  EXPECT_EQ(iterations(), (std::set<std::int64_t>{5, 6}));
}

TEST_F(LocalCheckpoint, ShardsOfAnAbandonedRunAreNotMixedWithNewOnes) {
  const auto backend = device::make_host_backend(1);
  BackgroundSave background(*world_, *backend, held_.tensors, /*replicas=*/true);
  for (const std::int64_t iteration : {7, 9}) save(iteration);
  start(background, 7, {});
  EXPECT_EQ(iterations(), (std::set<std::int64_t>{9})) << "no rank has written its new one yet";
  background.wait();
  EXPECT_EQ(iterations(), (std::set<std::int64_t>{7, 9}));
}

// A node is away while the run goes through an iteration a second time, and then comes back.
TEST_F(LocalCheckpoint, ShardsOfTwoSavesOfAnIterationAreNotMixed) {
  const auto backend = device::make_host_backend(1);
  BackgroundSave background(*world_, *backend, held_.tensors, /*replicas=*/true);
  start(background, 3, {});
  background.wait();
  const std::string first = find()->save;
  start(background, 5, {});
  background.wait();
  const std::string earlier = read_file(shard_path(disk_, 5, rank_));
  start(background, 5, {});
  background.wait();
  const auto newest = find();
  ASSERT_TRUE(newest);
  EXPECT_EQ(newest->iteration, 5);
  EXPECT_NE(newest->save, first);
  EXPECT_NE(earlier.find("\"save\":"), std::string::npos);
  if (size_ == 1) return;
  world_->barrier();
  if (rank_ == size_ - 1) write_file_atomically(shard_path(disk_, 5, rank_), earlier);
  world_->barrier();
  const auto found = find();
  ASSERT_TRUE(found);
  EXPECT_EQ(found->iteration, 3);
  EXPECT_EQ(found->save, first);
  EXPECT_NE(note_.find("the shards of iteration 5 are not of one save"), std::string::npos)
      << note_;
}

TEST_F(LocalCheckpoint, ARewindKeepsTheNewestOneWithCopies) {
  if (size_ == 1) GTEST_SKIP() << "needs a second node";
  const auto backend = device::make_host_backend(1);
  BackgroundSave background(*world_, *backend, held_.tensors, /*replicas=*/true);
  for (const std::int64_t iteration : {20, 30}) {
    start(background, iteration, own_nodes());
    background.wait();
  }
  background.remove_newer_shards(disk_, 20);
  EXPECT_EQ(iterations(), (std::set<std::int64_t>{20}));
  for (const std::int64_t iteration : {22, 24}) {
    save_without_copies(background, iteration);
    EXPECT_EQ(iterations(), (std::set<std::int64_t>{20, iteration}));
    EXPECT_TRUE(std::filesystem::exists(copy_of(20)));
  }
}

TEST_F(LocalCheckpoint, AShardThatCannotBeReadHasNoCopy) {
  if (size_ == 1) GTEST_SKIP() << "needs a second node";
  const auto own = save(3);
  if (rank_ == 0) std::filesystem::remove(own);
  if (rank_ < 2)
    EXPECT_THROW(exchange_copies(disk_, 3, *world_, own_nodes()), IoError);
  else
    exchange_copies(disk_, 3, *world_, own_nodes());
  EXPECT_EQ(std::filesystem::exists(copy_of(3)), rank_ != 1);
  EXPECT_FALSE(std::filesystem::exists(copy_of(3).string() + ".part"));
}

// A copy to another node may take longer than comm.timeout, as long as it progresses.
TEST_F(LocalCheckpoint, SlowCopiesAreNoStall) {
  if (size_ == 1) GTEST_SKIP() << "needs a second node";
  const auto backend = device::make_host_backend(1);
  constexpr double kTimeout = 4.0;
  world_->set_timeout(kTimeout);
  {
    BackgroundSave background(*world_, *backend, held_.tensors, /*replicas=*/true);
    const SlowNetwork network(std::chrono::milliseconds(1500));
    const Stopwatch watch;
    start(background, 1, own_nodes());
    background.wait();
    EXPECT_GT(watch.seconds(), kTimeout) << "the network was not slow";
  }
  world_->set_timeout(60 * kTimeout);  // MPI_Finalize keeps to it, too
  EXPECT_TRUE(std::filesystem::exists(copy_of(1)));
}

TEST_F(LocalCheckpoint, AShardThatCannotBeDroppedEndsNoSave) {
  const auto backend = device::make_host_backend(1);
  BackgroundSave background(*world_, *backend, held_.tensors, /*replicas=*/true);
  const auto save_next = [&](std::int64_t iteration, const std::vector<int>& partners) {
    start(background, iteration, partners);
    background.wait();
    EXPECT_FALSE(background.in_flight());
    verify_shard(shard_path(disk_, iteration, rank_));
  };
  // Folders with something in them, in the places of old shards.
  for (const std::int64_t iteration : {1, 2})
    std::filesystem::create_directories(shard_path(disk_, iteration, rank_) / "x");
  for (const std::int64_t iteration : {3, 4}) save_next(iteration, {});
  if (size_ > 1)
    for (const std::int64_t iteration : {5, 6}) save_next(iteration, own_nodes());
  EXPECT_TRUE(std::filesystem::exists(shard_path(disk_, 1, rank_) / "x"));
}

TEST_F(LocalCheckpoint, NothingIsPromisedWhileFirstCopiesAreMade) {
  if (size_ == 1) GTEST_SKIP() << "needs a second node";
  const auto backend = device::make_host_backend(1);
  BackgroundSave background(*world_, *backend, held_.tensors, /*replicas=*/true);
  start(background, 1, own_nodes());
  while (!background.advance()) EXPECT_FALSE(background.publishes());
}

// With checkpoint.async: false a shared checkpoint is written next to the thread of a local one.
TEST_F(LocalCheckpoint, SharedOnesAreSavedWhileOneIsWritten) {
  const auto backend = device::make_host_backend(1);
  BackgroundSave background(*world_, *backend, held_.tensors, /*replicas=*/true);
  for (std::int64_t iteration = 1; iteration <= 20; ++iteration) {
    start(background, iteration, /*partners=*/{});
    background.advance();
    ASSERT_TRUE(background.in_flight());
    save_known(Sharding::rows, iteration);
    background.wait();
    verify_shard(shard_path(disk_, iteration, rank_));
    on_first_rank([&] { EXPECT_EQ(verify(path_).tensors, held_.tensors.size()); });
  }
}

TEST_F(LocalCheckpoint, OldAndUnfinishedShardsAreRemoved) {
  save(3);
  const auto kept = save(5);
  std::ofstream(kept.string() + ".part") << "x";
  std::ofstream(disk_ / "other") << "x";
  std::ofstream(shard_path(disk_, 3, 1).string() + kDamaged) << "x";
  const std::string recent = shard_path(disk_, 7, 1).string() + kDamaged;
  std::ofstream(recent) << "x";
  remove_unfinished_shards(disk_);
  remove_shards(disk_, [](std::int64_t iteration) { return iteration < 5; });
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(disk_))
    files += entry.is_regular_file();
  EXPECT_EQ(files, 3);
  EXPECT_TRUE(std::filesystem::exists(kept));
  EXPECT_TRUE(std::filesystem::exists(recent));
}

}  // namespace
}  // namespace trireme::checkpoint

/// Stands in for MPI's.
extern "C" int MPI_Sendrecv(const void* sent, int sent_count, MPI_Datatype sent_type, int to,
                            int sent_tag, void* received, int received_count,
                            MPI_Datatype received_type, int from, int received_tag, MPI_Comm group,
                            MPI_Status* status) {
  trireme::checkpoint::SlowNetwork::wait();
  return PMPI_Sendrecv(sent, sent_count, sent_type, to, sent_tag, received, received_count,
                       received_type, from, received_tag, group, status);
}
