// A library to preload (LD_PRELOAD) that makes storage fail: calls on files whose names contain
// ".h5.part", those of checkpoints, or another text; or the network: TCP connections of Open MPI
// (btl tcp); or the clock.
//
//   TRIREME_FAULT        eio, enospc: writes fail; short: writes take a part of the bytes, now and
//                        then none but EINTR; emfile: no file can be opened; erofs: none can be
//                        opened for writing; slow: writes take 50 ms; slow-link: each message takes
//                        2 ms more; cut: nothing is sent or received any more, and no error seen;
//                        clock: the wall clock jumps by a day back and forth
//   TRIREME_FAULT_FILES  what is in the names of the files (.h5.part)
//   TRIREME_FAULT_RANK   of which rank, whether mpirun or srun starts it; of all without it
//   TRIREME_FAULT_AFTER  how many calls succeed first (0)
//   TRIREME_FAULT_COUNT  how many calls then have the fault (all)
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>

namespace {

using Write = ssize_t (*)(int, const void*, size_t);
using WriteAt = ssize_t (*)(int, const void*, size_t, off64_t);
using Open = int (*)(const char*, int, ...);

std::string_view environment(const char* name) {
  const char* text = std::getenv(name);
  return text ? text : "";
}

/// This process's rank, as its launcher says; "" where none does.
std::string_view rank_here() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID"})
    if (const std::string_view rank = environment(name); !rank.empty()) return rank;
  return "";
}

std::string_view fault() {
  static const std::string_view rank = environment("TRIREME_FAULT_RANK");
  static const bool here = rank.empty() || rank == rank_here();
  return here ? environment("TRIREME_FAULT") : "";
}

int number(const char* name, int otherwise) {
  const std::string text(environment(name));
  return text.empty() ? otherwise : std::atoi(text.c_str());
}

/// Whether the call that is about to happen comes after those that succeed, and is not yet one that
/// succeeds again.
bool is_due() {
  static const int first = number("TRIREME_FAULT_AFTER", 0);
  static const int count = number("TRIREME_FAULT_COUNT", 1 << 30);
  static std::atomic<int> calls{0};
  const int call = calls++;
  return call >= first && call - first < count;
}

bool is_chosen(std::string_view path) {
  static const std::string_view files = environment("TRIREME_FAULT_FILES");
  return path.find(files.empty() ? ".h5.part" : files) != std::string_view::npos;
}

bool is_chosen(int fd) {
  char path[4096];
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t length = ::readlink(link.c_str(), path, sizeof path);
  return length > 0 && is_chosen(std::string_view(path, static_cast<size_t>(length)));
}

/// Runs `call(count)`, which writes `count` bytes, or does what the fault says.
template <typename Call>
ssize_t write_with_faults(int fd, size_t count, const Call& call) {
  const bool of_writes =
      fault() == "eio" || fault() == "enospc" || fault() == "short" || fault() == "slow";
  if (!of_writes || !is_chosen(fd) || !is_due()) return call(count);
  if (fault() == "eio" || fault() == "enospc") {
    errno = fault() == "eio" ? EIO : ENOSPC;
    return -1;
  }
  if (fault() == "short") {
    static std::atomic<int> calls{0};
    if (calls++ % 3 == 0) {
      errno = EINTR;
      return -1;
    }
    return call((count + 1) / 2);
  }
  if (fault() == "slow") std::this_thread::sleep_for(std::chrono::milliseconds(50));
  return call(count);
}

template <typename Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

int open_with_faults(const char* name, const char* path, int flags, mode_t mode) {
  if (fault() == "emfile" && is_chosen(path) && is_due()) {
    errno = EMFILE;
    return -1;
  }
  const bool writes = (flags & (O_WRONLY | O_RDWR)) != 0;
  if (fault() == "erofs" && writes && is_chosen(path) && is_due()) {
    errno = EROFS;
    return -1;
  }
  return next<Open>(name)(path, flags, mode);
}

/// Whether `fd` is a TCP connection.
bool is_tcp(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  return ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0 &&
         (address.ss_family == AF_INET || address.ss_family == AF_INET6);
}

/// A vector read or write of a socket, as the fault lets it be.
template <typename Call>
ssize_t message_with_faults(int fd, const Call& call) {
  const bool cut = fault() == "cut";
  if ((!cut && fault() != "slow-link") || !is_tcp(fd) || !is_due()) return call();
  if (cut) {
    errno = EAGAIN;
    return -1;
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  return call();
}

/// Seconds by which the wall clock is wrong at this call.
time_t clock_error() {
  static std::atomic<int> calls{0};
  constexpr time_t kDay = 86400;
  constexpr time_t kErrors[] = {0, kDay, -kDay};
  return fault() == "clock" ? kErrors[calls++ / 5 % 3] : 0;
}

mode_t mode_of(int flags, va_list arguments) {
  return (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
}

}  // namespace

extern "C" {

ssize_t write(int fd, const void* data, size_t count) {
  return write_with_faults(fd, count, [&](size_t n) { return next<Write>("write")(fd, data, n); });
}

ssize_t pwrite(int fd, const void* data, size_t count, off_t offset) {
  return write_with_faults(fd, count,
                           [&](size_t n) { return next<WriteAt>("pwrite")(fd, data, n, offset); });
}

ssize_t pwrite64(int fd, const void* data, size_t count, off64_t offset) {
  return write_with_faults(
      fd, count, [&](size_t n) { return next<WriteAt>("pwrite64")(fd, data, n, offset); });
}

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return open_with_faults("open", path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return open_with_faults("open64", path, flags, mode);
}

ssize_t writev(int fd, const iovec* parts, int count) {
  using Writev = ssize_t (*)(int, const iovec*, int);
  return message_with_faults(fd, [&] { return next<Writev>("writev")(fd, parts, count); });
}

ssize_t readv(int fd, const iovec* parts, int count) {
  using Readv = ssize_t (*)(int, const iovec*, int);
  return message_with_faults(fd, [&] { return next<Readv>("readv")(fd, parts, count); });
}

int clock_gettime(clockid_t clock, timespec* time) {
  using ClockGettime = int (*)(clockid_t, timespec*);
  static const auto real = next<ClockGettime>("clock_gettime");
  const int result = real(clock, time);
  if (clock == CLOCK_REALTIME) time->tv_sec += clock_error();
  return result;
}

int gettimeofday(timeval* time, void* zone) {
  using Gettimeofday = int (*)(timeval*, void*);
  static const auto real = next<Gettimeofday>("gettimeofday");
  const int result = real(time, zone);
  time->tv_sec += clock_error();
  return result;
}

}  // extern "C"
