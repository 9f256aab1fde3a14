#include "train/startup/launch.hpp"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <string_view>
#include <utility>

#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/system/process.hpp"
#include "report/follow/follower.hpp"

extern char** environ;

namespace trireme::train {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kRelay = "--relay-output";
constexpr int kOutPipe = 0, kErrPipe = 3;  // of the relay; 1 and 2 are what the rank had

// ---- the rank

IoError failed(const char* what) {
  return IoError("log.rank_files: cannot {}: {}", what, std::strerror(errno));
}

/// A pipe whose ends no other program inherits.
struct Pipe {
  Pipe() {
    if (::pipe2(ends, O_CLOEXEC) != 0) throw failed("make a pipe");
  }
  ~Pipe() {
    ::close(ends[0]);
    ::close(ends[1]);
  }
  int ends[2];
};

/// Redirects this process's output to a relay, and waits for it at the end.
class Redirection {
 public:
  explicit Redirection(const char* const* arguments) {
    const Pipe out, err;
    saved_[0] = ::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 4);
    saved_[1] = ::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 4);
    if (saved_[0] < 0 || saved_[1] < 0) throw failed("keep the standard output");
    std::fflush(stdout);
    relay_ = spawn(arguments, out.ends[0], err.ends[0]);
    ::dup2(out.ends[1], STDOUT_FILENO);
    ::dup2(err.ends[1], STDERR_FILENO);
  }
  ~Redirection() {
    std::fflush(stdout);
    std::fflush(stderr);
    ::dup2(saved_[0], STDOUT_FILENO);
    ::dup2(saved_[1], STDERR_FILENO);
    ::waitpid(relay_, nullptr, 0);  // it ends with its pipes
  }
  Redirection(const Redirection&) = delete;

 private:
  static pid_t spawn(const char* const* arguments, int out, int err) {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
    posix_spawn_file_actions_adddup2(&actions, out, kOutPipe);
    posix_spawn_file_actions_adddup2(&actions, err, kErrPipe);
    // Its own process group: what kills the rank's lets it pass on the last words.
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    pid_t child = 0;
    // Unlike fork() this leaves alone what MPI has mapped.
    errno = ::posix_spawn(&child, "/proc/self/exe", &actions, &attributes,
                          const_cast<char* const*>(arguments), environ);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    if (errno != 0) throw failed("start the process that passes on the output");
    return child;
  }

  int saved_[2];
  pid_t relay_ = 0;
};

// ---- the relay

/// Writes all of `bytes`; false when that fails.
bool write_all(int file, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::write(file, bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(put));
  }
  return true;
}

/// One stream of a rank: from a pipe to a file, line by line, and to where it went before.
class Stream {
 public:
  /// `console` is a descriptor, or below zero.
  Stream(int pipe, const std::string& file, std::string prefix, int console)
      : pipe_(pipe), console_(console), prefix_(std::move(prefix)), path_(file) {
    file_ = ::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    line(fmt::format("{}{}", report::kOutputMarker, local_date_time(unix_time())));
  }

  int pipe() const { return pipe_; }

  /// Passes on what there is; false at its end.
  bool pass_on() {
    char buffer[1 << 16];
    const ssize_t got = ::read(pipe_, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) return true;
    if (got <= 0) {
      if (!begun_.empty()) line(std::exchange(begun_, ""));
      return false;
    }
    const std::string_view text(buffer, static_cast<std::size_t>(got));
    if (console_ >= 0 && !write_all(console_, text)) console_ = -1;  // no reader is left
    begun_ += text;
    std::size_t start = 0;
    for (std::size_t end; (end = begun_.find('\n', start)) != std::string::npos; start = end + 1)
      line(std::string_view(begun_).substr(start, end - start));
    begun_.erase(0, start);
    return true;
  }

 private:
  /// In one piece, for all ranks of the node write to this file.
  void line(std::string_view text) {
    if (file_ >= 0 && write_all(file_, prefix_ + std::string(text) + '\n')) return;
    if (std::exchange(warned_, true)) return;
    write_all(STDERR_FILENO,
              fmt::format("warning: cannot write '{}': {}\n", path_, std::strerror(errno)));
  }

  int pipe_, file_, console_;
  std::string prefix_, path_, begun_;
  bool warned_ = false;
};

/// Passes on both streams until the rank has closed them.
int relay(const std::string& rank, const std::string& stem) {
  // Signals are for the rank; when it ends, so does this.
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGPIPE, SIGTTOU, SIGXFSZ})
    std::signal(signal, SIG_IGN);
  const std::string prefix = "[rank " + rank + "] ";
  Stream streams[] = {{kOutPipe, stem + ".out", prefix, rank == "0" ? STDOUT_FILENO : -1},
                      {kErrPipe, stem + ".err", prefix, STDERR_FILENO}};
  pollfd waiting[] = {{kOutPipe, POLLIN, 0}, {kErrPipe, POLLIN, 0}};
  while (waiting[0].fd >= 0 || waiting[1].fd >= 0) {
    if (::poll(waiting, std::size(waiting), -1) < 0) continue;  // a signal
    for (std::size_t i = 0; i < std::size(waiting); ++i)
      if (waiting[i].revents != 0 && !streams[i].pass_on()) waiting[i].fd = -1;
  }
  return 0;
}

}  // namespace

fs::path rank_file(const fs::path& run_folder, const std::string& suffix) {
  return run_folder / "ranks" / (host_name() + suffix);
}

void make_rank_folder(const fs::path& run_folder) {
  std::error_code error;
  fs::create_directories(run_folder / "ranks", error);
  if (error)
    throw IoError("cannot make folder '{}/ranks': {}", run_folder.string(), error.message());
}

void remove_rank_files(const fs::path& run_folder) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(run_folder / "ranks", error)) {
    const std::string suffix = entry.path().extension().string();
    if (suffix != ".out" && suffix != ".err" && suffix != ".gpu" && suffix != ".stacks") continue;
    fs::remove(entry.path(), error);
    if (error) throw IoError("cannot remove '{}': {}", entry.path().string(), error.message());
  }
}

void keep_rank_output(const fs::path& run_folder, int rank) {
  const std::string number = std::to_string(rank);
  const std::string stem = rank_file(run_folder, "").string();
  const char* arguments[] = {program_invocation_name, kRelay.data(), number.c_str(), stem.c_str(),
                             nullptr};
  // For the rest of the process: errors are printed when all else is gone.
  static const Redirection redirection(arguments);
}

std::optional<int> relay_if_asked(int argc, char** argv) {
  if (argc != 4 || argv[1] != kRelay) return std::nullopt;
  return relay(argv[2], argv[3]);
}

}  // namespace trireme::train
