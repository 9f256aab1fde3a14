#include "checkpoint/elements.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "checkpoint/file.hpp"
#include "comm/mpi/mpi_communicator.hpp"
#include "core/error.hpp"
#include "core/files.hpp"
#include "core/system/process.hpp"

namespace trireme::checkpoint {
namespace {

/// Bytes of one pwrite(): on storage of 10 MB/s it takes less than a second.
constexpr std::int64_t kWriteBytes = std::int64_t{8} << 20;
/// Bytes between two fdatasync(): syncing costs little where it writes so much.
constexpr std::int64_t kSyncBytes = std::int64_t{64} << 20;

void create_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw IoError("cannot create '{}': {}", folder.string(), error.message());
}

/// File `number` of reserve_files(), from 1.
std::filesystem::path numbered(const std::filesystem::path& unfinished, int number) {
  if (number == 1) return unfinished;
  return fmt::format("{}.{}", unfinished.string(), number);
}

}  // namespace

PartFile::PartFile(const std::filesystem::path& path, std::function<void()> progressed)
    : path_(path), progressed_(std::move(progressed)) {
  // Not for reading: a client of NFS then sends the bytes written here and no others.
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd_ < 0) fail("open", errno);
}

PartFile::~PartFile() { ::close(fd_); }

void PartFile::resize(std::int64_t bytes) {
  if (::ftruncate(fd_, bytes) != 0) fail("resize", errno);
}

void PartFile::write(const void* data, std::int64_t bytes, std::int64_t offset) {
  const std::byte* next = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const auto count = static_cast<std::size_t>(std::min(bytes, kWriteBytes));
    const ssize_t put = ::pwrite(fd_, next, count, offset);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) fail("write", put < 0 ? errno : ENOSPC);
    next += put;
    offset += put;
    bytes -= put;
    unsynced_ += put;
    progressed_();
    // The disk's errors and its speed show while the file is written, not all at the end.
    if (unsynced_ >= kSyncBytes) sync();
  }
}

void PartFile::write(const grid::Hyperslabs& slabs, const Shape& shape, std::int64_t width,
                     const void* data, std::int64_t offset) {
  const std::int64_t columns = grid::whole_tensor(shape).columns;
  const std::byte* next = static_cast<const std::byte*>(data);
  for (const grid::Hyperslab& slab : slabs) {
    // Whole rows follow each other in the file.
    const std::int64_t rows_together = slab.columns == columns ? slab.rows : 1;
    const std::int64_t bytes = rows_together * slab.columns * width;
    for (std::int64_t row = 0; row < slab.rows; row += rows_together) {
      write(next, bytes, offset + ((slab.row + row) * columns + slab.column) * width);
      next += bytes;
    }
  }
}

void PartFile::sync() {
  while (::fdatasync(fd_) != 0)
    if (errno != EINTR) fail("sync", errno);
  unsynced_ = 0;
  progressed_();
}

void PartFile::fail(const char* action, int error) const {
  throw IoError("cannot {} '{}': {} ({})", action, path_.string(), std::strerror(error),
                process_identity());
}

// ---------------------------------------------------------------------------- disk space

void reserve_files(const std::filesystem::path& unfinished, std::int64_t bytes, int count) {
  create_folder(unfinished.parent_path());
  remove_unfinished(unfinished.parent_path());
  remove_files(unfinished, count);
  reserve_space(unfinished, bytes);
  try {
    for (int number = 2; number <= count; ++number)
      reserve_space(numbered(unfinished, number), bytes);
  } catch (const IoError& error) {
    throw IoError("{}; checkpoint.keep needs space for {} more checkpoints", error.what(), count);
  }
}

void reserve_space(const std::filesystem::path& path, std::int64_t bytes) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644);
  if (file < 0) throw IoError("cannot open '{}': {}", path.string(), std::strerror(errno));
  int error = 0;
  do {
    error = bytes == 0 || ::fallocate(file, 0, 0, bytes) == 0 ? 0 : errno;
  } while (error == EINTR);
  ::close(file);
  if (error != 0 && error != EOPNOTSUPP && error != ENOSYS)
    throw IoError("cannot reserve {} for '{}': {}", human_bytes(static_cast<double>(bytes)),
                  path.string(), std::strerror(error));
}

void remove_files(const std::filesystem::path& unfinished, int count) {
  std::error_code ignored;
  for (int number = 1; number <= count; ++number)
    std::filesystem::remove(numbered(unfinished, number), ignored);
}

// ---------------------------------------------------------------------------- elements

namespace {

// Elements go to the file as they are in memory, and it is little-endian.
static_assert(std::endian::native == std::endian::little);

/// Bytes of a rank after which the ranks agree.
constexpr std::int64_t kRoundBytes = std::int64_t{1} << 30;

/// Part of a piece, small enough for HostView's buffer.
struct Slice {
  std::size_t tensor = 0;
  grid::Hyperslabs slabs;
  const void* data = nullptr;
};
using Round = std::vector<Slice>;

std::int64_t width_of(const LocalTensor& tensor) {
  return static_cast<std::int64_t>(size_of(tensor.dtype));
}

/// The pieces that this rank owns, in rounds of about kRoundBytes.
std::vector<Round> split_into_rounds(const std::vector<LocalTensor>& tensors) {
  std::vector<Round> rounds;
  std::int64_t left = 0;  // bytes of the last round
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::int64_t width = width_of(tensors[i]);
    const std::int64_t step = HostView::kPieceBytes / width;
    for (const Piece& piece : tensors[i].pieces) {
      const std::int64_t count = piece.owner ? count_elements(piece.slabs) : 0;
      for (std::int64_t begin = 0; begin < count; begin += step) {
        if (left <= 0) {
          rounds.emplace_back();
          left = kRoundBytes;
        }
        const std::int64_t end = std::min(begin + step, count);
        rounds.back().push_back(
            {.tensor = i,
             .slabs = slice_hyperslabs(piece.slabs, begin, end),
             .data = static_cast<const std::byte*>(piece.data) + begin * width});
        left -= (end - begin) * width;
      }
    }
  }
  return rounds;
}

void write_slice(PartFile& file, const std::vector<LocalTensor>& tensors,
                 const std::vector<std::int64_t>& offsets, const Slice& slice, HostView& view) {
  const LocalTensor& tensor = tensors[slice.tensor];
  view.read(slice.slabs, tensor.dtype, slice.data,
            [&](const grid::Hyperslabs& slabs, const void* data) {
              file.write(slabs, tensor.shape, width_of(tensor), data, offsets[slice.tensor]);
            });
}

}  // namespace

void write_own_elements(PartFile& file, const std::vector<LocalTensor>& tensors,
                        const std::vector<std::int64_t>& offsets, HostView& view) {
  for (const Round& round : split_into_rounds(tensors))
    for (const Slice& slice : round) write_slice(file, tensors, offsets, slice, view);
  file.sync();
}

void write_elements(const std::filesystem::path& path, comm::MpiCommunicator& ranks,
                    const std::vector<LocalTensor>& tensors,
                    const std::vector<std::int64_t>& offsets, HostView& view) {
  const std::vector<Round> own = split_into_rounds(tensors);
  const auto rounds = static_cast<std::size_t>(
      ranks.all_reduce(static_cast<double>(own.size()), comm::Reduce::max));
  for (std::size_t round = 0; round < rounds; ++round)
    comm::agree(ranks, [&] {
      if (round >= own.size()) return;
      comm::WatchedWork work = ranks.work("writing '" + path.string() + "'");
      PartFile file(path, [&] { work.note_progress(); });
      for (const Slice& slice : own[round]) write_slice(file, tensors, offsets, slice, view);
      file.sync();
    });
}

void test_write(const std::filesystem::path& path, comm::MpiCommunicator& ranks,
                std::int64_t offset) {
  comm::agree(ranks, [&] {
    comm::WatchedWork work = ranks.work("writing '" + path.string() + "'");
    PartFile file(path, [&] { work.note_progress(); });
    constexpr std::array<char, 4> kZeros{};
    file.write(kZeros.data(), kZeros.size(), offset);
    file.sync();
  });
}

// ---------------------------------------------------------------------------- reading

namespace {

/// Parts of rows at least this long are read by separate calls; shorter ones with what lies
/// between them, up to so many bytes in one call.
constexpr std::int64_t kRowBytes = std::int64_t{64} << 10, kStripBytes = std::int64_t{1} << 20;

}  // namespace

InputFile::InputFile(const std::filesystem::path& path)
    : path_(path), fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  if (fd_ < 0) throw IoError("cannot open '{}': {}", path.string(), std::strerror(errno));
}

InputFile::~InputFile() { ::close(fd_); }

std::int64_t InputFile::size() const { return ::lseek(fd_, 0, SEEK_END); }

void InputFile::read(void* data, std::int64_t bytes, std::int64_t offset) const {
  while (bytes > 0) {
    const ssize_t got = ::pread(fd_, data, static_cast<std::size_t>(bytes), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw IoError("cannot read '{}': {}", path_.string(), std::strerror(errno));
    if (got == 0) throw IoError("'{}' ends at byte {}", path_.string(), offset);
    data = static_cast<std::byte*>(data) + got;
    bytes -= got;
    offset += got;
  }
}

void InputFile::read(const grid::Hyperslabs& slabs, const Shape& shape, std::int64_t width,
                     std::int64_t offset, void* data) const {
  const std::int64_t columns = grid::whole_tensor(shape).columns;
  std::unique_ptr<std::byte[]> strip;
  std::byte* next = static_cast<std::byte*>(data);
  for (const grid::Hyperslab& slab : slabs) {
    const std::int64_t begin = offset + (slab.row * columns + slab.column) * width;
    const std::int64_t part = slab.columns * width, stride = columns * width;
    if (part == stride) {  // whole rows follow each other in the file
      read(next, slab.rows * stride, begin);
      next += slab.rows * stride;
      continue;
    }
    const std::int64_t rows_at_a_time =
        part >= kRowBytes ? 1 : std::clamp<std::int64_t>(kStripBytes / stride, 1, slab.rows);
    if (rows_at_a_time > 1 && !strip)
      strip = std::make_unique_for_overwrite<std::byte[]>(kStripBytes);
    for (std::int64_t row = 0; row < slab.rows; row += rows_at_a_time) {
      const std::int64_t rows = std::min(rows_at_a_time, slab.rows - row);
      std::byte* const from = rows > 1 ? strip.get() : next;
      read(from, (rows - 1) * stride + part, begin + row * stride);
      for (std::int64_t i = 0; rows > 1 && i < rows; ++i)
        std::memcpy(next + i * part, from + i * stride, static_cast<std::size_t>(part));
      next += rows * part;
    }
  }
}

namespace {

/// A ring of buffers that threads fill and the calling one empties in order.
class Ring {
 public:
  Ring(std::size_t count, std::size_t buffers, std::size_t bytes) : count_(count), full_(buffers) {
    for (std::size_t i = 0; i < buffers; ++i)
      buffers_.push_back(std::make_unique_for_overwrite<std::byte[]>(bytes));
  }

  std::byte* buffer(std::size_t i) const { return buffers_[i % buffers_.size()].get(); }

  /// The next one to read, once its buffer is free; count where there is none left.
  std::size_t next_to_read() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock,
                  [&] { return error_ || read_ == count_ || read_ < used_ + buffers_.size(); });
    return error_ ? count_ : std::exchange(read_, std::min(read_ + 1, count_));
  }
  void note_read(std::size_t i) {
    note([&] { full_[i % full_.size()] = true; });
  }
  /// False where there was an error.
  bool wait_for(std::size_t i) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return error_ || full_[i % full_.size()]; });
    return !error_;
  }
  void note_used(std::size_t i) {
    note([&] {
      full_[i % full_.size()] = false;
      used_ = i + 1;
    });
  }
  void fail(std::exception_ptr error) {
    note([&] {
      if (!error_) error_ = std::move(error);
    });
  }
  void rethrow_error() {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  template <typename Change>
  void note(const Change& change) {
    const std::scoped_lock lock(mutex_);
    change();
    changed_.notify_all();
  }

  const std::size_t count_;
  std::vector<std::unique_ptr<std::byte[]>> buffers_;
  std::vector<char> full_;
  std::size_t read_ = 0, used_ = 0;
  std::exception_ptr error_;
  std::mutex mutex_;
  std::condition_variable changed_;
};

}  // namespace

void read_ahead(std::size_t count, int threads, std::size_t bytes,
                const std::function<void(std::size_t i, void* buffer)>& read,
                const std::function<void(std::size_t i, const void* buffer)>& use) {
  Ring ring(count, 2 * static_cast<std::size_t>(threads), bytes);
  const auto guarded = [&](const auto& work) {
    try {
      work();
    } catch (...) {
      ring.fail(std::current_exception());
    }
  };
  {
    std::vector<std::jthread> readers;  // joined at the end of this block
    guarded([&] {
      for (int thread = 0; thread < threads; ++thread)
        readers.emplace_back([&] {
          guarded([&] {
            for (std::size_t i; (i = ring.next_to_read()) < count; ring.note_read(i))
              read(i, ring.buffer(i));
          });
        });
      for (std::size_t i = 0; i < count && ring.wait_for(i); ++i) {
        use(i, ring.buffer(i));
        ring.note_used(i);
      }
    });
  }
  ring.rethrow_error();
}

}  // namespace trireme::checkpoint
