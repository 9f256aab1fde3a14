#include "checkpoint/room.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include "checkpoint/folder.hpp"
#include "core/error.hpp"
#include "core/files.hpp"

namespace trireme::checkpoint {
namespace {

void make_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw IoError("cannot make '{}': {}", folder.string(), error.message());
}

/// File `number` of make_room(), from 1.
std::filesystem::path numbered(const std::filesystem::path& unfinished, int number) {
  if (number == 1) return unfinished;
  return fmt::format("{}.{}", unfinished.string(), number);
}

}  // namespace

std::int64_t upper_size(const std::string& deck, const std::vector<LocalTensor>& tensors) {
  // A tensor's metadata and its share of the groups take less than 2 KiB.
  std::int64_t bytes = 65536 + static_cast<std::int64_t>(deck.size());
  for (const LocalTensor& tensor : tensors)
    bytes += tensor.shape.size() * static_cast<std::int64_t>(size_of(tensor.dtype)) + 2048;
  return bytes;
}

void make_room(const std::filesystem::path& unfinished, std::int64_t bytes, int count) {
  make_folder(unfinished.parent_path());
  remove_unfinished(unfinished.parent_path());
  reserve_space(unfinished, bytes);
  try {
    for (int number = 2; number <= count; ++number)
      reserve_space(numbered(unfinished, number), bytes);
  } catch (const IoError& error) {
    throw IoError("{}; checkpoint.keep takes room for {} more checkpoints at once", error.what(),
                  count);
  }
}

void reserve_space(const std::filesystem::path& path, std::int64_t bytes) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644);
  if (file < 0) throw IoError("cannot open '{}': {}", path.string(), std::strerror(errno));
  int error = 0;
  do {
    error = ::fallocate(file, 0, 0, bytes) == 0 ? 0 : errno;
  } while (error == EINTR);
  ::close(file);
  if (error != 0 && error != EOPNOTSUPP && error != ENOSYS)
    throw IoError("cannot reserve {} for '{}': {}", human_bytes(static_cast<double>(bytes)),
                  path.string(), std::strerror(error));
}

void remove_room(const std::filesystem::path& unfinished, int count) {
  std::error_code ignored;
  for (int number = 1; number <= count; ++number)
    std::filesystem::remove(numbered(unfinished, number), ignored);
}

}  // namespace trireme::checkpoint
