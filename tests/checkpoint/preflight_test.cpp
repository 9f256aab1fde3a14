// Missing disk space for the checkpoints of a run is reported before training.
#include <sys/syscall.h>

#include <atomic>
#include <cerrno>
#include <limits>

#include "../message_of.hpp"
#include "core/files.hpp"
#include "one_rank.hpp"

namespace trireme::checkpoint {
namespace {

/// Lets this process reserve `bytes` of disk and no more.
class SmallDisk {
 public:
  explicit SmallDisk(std::int64_t bytes) { room_ = bytes; }
  ~SmallDisk() { room_ = kEndless; }
  static bool take(std::int64_t bytes) { return (room_ -= bytes) >= 0; }

 private:
  static constexpr std::int64_t kEndless = std::numeric_limits<std::int64_t>::max();
  inline static std::atomic<std::int64_t> room_ = kEndless;  // other tests have threads
};

class PreflightTest : public OneRankTest {
 protected:
  void preflight(int count) {
    const ShardedTensors sharded(small_model(), Sharding::first_rank, 0, 1);
    preflight_save(step_path(folder_, 10), *world_, kOneRankDeck, sharded.tensors, count);
  }
};

TEST_F(PreflightTest, FindsRoomForAllFilesTogether) {
  const auto size = static_cast<std::int64_t>(std::filesystem::file_size(save_step(10)));
  const std::int64_t room = 2 * (size + 131072);  // it asks for a little more than a file takes
  {
    const SmallDisk disk(room);
    preflight(1);
  }
  {
    const SmallDisk disk(room);
    preflight(2);
  }
  const SmallDisk disk(room);
  const std::string message = message_of<IoError>([&] { preflight(9); });
  EXPECT_NE(message.find("No space left on device; checkpoint.keep needs space for 9 more"),
            std::string::npos)
      << message;
  EXPECT_EQ(list_steps(folder_).size(), 1u);
  for (const auto& file : std::filesystem::directory_iterator(folder_))
    EXPECT_EQ(file.path().string().find(".part"), std::string::npos) << file.path();
}

}  // namespace
}  // namespace trireme::checkpoint

/// Stands in for the system's.
extern "C" int fallocate(int file, int mode, off_t offset, off_t bytes) {
  if (trireme::checkpoint::SmallDisk::take(bytes))
    return static_cast<int>(::syscall(SYS_fallocate, file, mode, offset, bytes));
  errno = ENOSPC;
  return -1;
}
