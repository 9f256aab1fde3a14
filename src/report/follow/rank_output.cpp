#include "report/follow/follower.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <deque>

#include "core/error.hpp"
#include "core/text.hpp"

namespace trireme::report {
namespace {

constexpr off_t kHead = 256;

/// Closes a descriptor at the end of a scope.
struct Closer {
  int file;
  ~Closer() { ::close(file); }
};

constexpr std::string_view kErrorWords[] = {"error",
                                            "fatal",
                                            "exception",
                                            "traceback",
                                            "abort",
                                            "segmentation fault",
                                            "bus error",
                                            "illegal instruction",
                                            "terminate called",
                                            "out of memory",
                                            "oom-kill",
                                            "core dumped",
                                            "killed",
                                            "cannot ",
                                            "timed out",
                                            "took longer than",
                                            "no space left",
                                            "cancelled at"};
/// Programs of Trireme print only errors as "NAME: message" on standard error.
constexpr std::string_view kOwnPrefix = "trireme-";

std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

/// Lines of rank 0's header and trailer repeat the user's words, which may look like an error.
bool repeats_command(std::string_view line) {
  return line.starts_with("command    ") || line.starts_with("continue   ") ||
         line.starts_with("run folder ") || line.starts_with("restart    ") ||
         line.starts_with("checkpoint ") || line.starts_with("  successfully saved checkpoint");
}

/// Takes "[rank 3] " off the line and returns "3", "" when there is none.
std::string take_rank(std::string_view& line) {
  constexpr std::string_view kBegin = "[rank ";
  const std::size_t end = line.find("] ");
  if (!line.starts_with(kBegin) || end == std::string_view::npos) return "";
  const std::string rank(line.substr(kBegin.size(), end - kBegin.size()));
  line.remove_prefix(end + 2);
  return rank;
}

/// The first line of a start in a job's output, to which a requeued job appends.
bool starts_introduction(std::string_view line) { return line.starts_with("command    "); }

/// `line` for a terminal: control characters replaced, and truncated.
std::string shown(std::string_view line) {
  constexpr std::size_t kMaxShown = 200;
  std::string text(line.substr(0, kMaxShown));
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return std::iscntrl(c) != 0; }, ' ');
  return text + (line.size() > kMaxShown ? "..." : "");
}

bool is_warning(const std::string& lower_line) {
  return lower_line.find("warn") != std::string::npos;
}

}  // namespace

LineFile::News LineFile::read() {
  const auto fail = [&] {
    return IoError("cannot read '{}': {}", path_.string(), std::strerror(errno));
  };
  News news;
  const int file = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0 && errno == ENOENT) return news;
  if (file < 0) throw fail();
  const Closer closer{file};
  struct stat status {};
  if (::fstat(file, &status) != 0) throw fail();
  char buffer[1 << 16];
  const bool same = status.st_dev == device_ && status.st_ino == inode_ &&
                    status.st_size >= offset_ &&
                    ::pread(file, buffer, head_.size(), 0) == static_cast<ssize_t>(head_.size()) &&
                    head_ == std::string_view(buffer, head_.size());
  if (offset_ > 0 && !same) news.anew = true;
  if (!same) {
    offset_ = 0;
    begun_.clear();
    head_.clear();
  }
  device_ = status.st_dev;
  inode_ = status.st_ino;

  while (true) {
    const ssize_t got = ::pread(file, buffer, sizeof buffer, offset_);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw fail();
    if (got == 0) break;
    if (offset_ < kHead)
      head_.append(buffer, static_cast<std::size_t>(std::min<off_t>(got, kHead - offset_)));
    offset_ += got;
    begun_.append(buffer, static_cast<std::size_t>(got));
  }
  std::size_t start = 0;
  for (std::size_t end; (end = begun_.find('\n', start)) != std::string::npos; start = end + 1) {
    const std::size_t length = end - start;
    const bool carriage_return = length > 0 && begun_[end - 1] == '\r';
    news.lines.push_back(begun_.substr(start, length - (carriage_return ? 1 : 0)));
  }
  begun_.erase(0, start);
  return news;
}

// ---------------------------------------------------------------------------- errors

bool tells_of_error(std::string_view line) {
  if (repeats_command(line)) return false;
  const std::string text = lower(line);
  if (is_warning(text) || text.find(" nccl info ") != std::string::npos) return false;
  // "trireme-pretrain: rank 3 on node07: ...", but not "trireme-pretrain 0.1.0".
  if (text.starts_with(kOwnPrefix) && text.find(": ") < text.find(' ')) return true;
  return std::any_of(std::begin(kErrorWords), std::end(kErrorWords),
                     [&](std::string_view word) { return text.find(word) != std::string::npos; });
}

void RankOutput::take(const std::string& file, std::string_view line) {
  auto& ranks = files_[file];
  const std::string rank = take_rank(line);
  Said& said = ranks[rank];
  const bool starts =
      line.starts_with(kOutputMarker) || (rank.empty() && starts_introduction(line));
  if (starts) said = {};
  if (tells_of_error(line)) {
    if (said.errors++ == 0)
      said.first_error = (rank.empty() ? "" : "rank " + rank + ": ") + shown(line);
  } else if (is_warning(lower(line)) && !repeats_command(line)) {
    ++said.warnings;
  }
}

std::int64_t RankOutput::errors() const {
  std::int64_t sum = 0;
  for (const auto& [file, ranks] : files_)
    for (const auto& [rank, said] : ranks) sum += said.errors;
  return sum;
}

std::int64_t RankOutput::warnings() const {
  std::int64_t sum = 0;
  for (const auto& [file, ranks] : files_)
    for (const auto& [rank, said] : ranks) sum += said.warnings;
  return sum;
}

std::string RankOutput::first_error() const {
  for (const auto& [file, ranks] : files_)
    for (const auto& [rank, said] : ranks)
      if (said.errors > 0) return file + ": " + said.first_error;
  return "";
}

namespace {

/// The end of a file.
struct FileEnd {
  std::size_t count = 0;         ///< all lines
  std::deque<std::string> last;  ///< at most as many as were asked for
  std::string with_hosts;        ///< the newest line that names hosts and GPUs
};

FileEnd read_end(const std::filesystem::path& path, std::size_t lines) {
  FileEnd end;
  LineFile file(path);
  for (std::string& line : file.read().lines) {
    ++end.count;
    if (line.starts_with("hosts ")) end.with_hosts = line;
    end.last.push_back(std::move(line));
    if (end.last.size() > lines) end.last.pop_front();
  }
  return end;
}

/// "iteration 30: 420.1 ms" for the last training lines.
std::string last_times(const std::filesystem::path& metrics, std::size_t lines) {
  std::deque<std::string> times;
  RunState state;
  LineFile file(metrics);
  for (const std::string& line : file.read().lines) {
    if (!state.take(line) || !state.train->ms) continue;
    times.push_back(
        fmt::format("iteration {}: {:.1f} ms\n", state.train->iteration, *state.train->ms));
    if (times.size() > lines) times.pop_front();
  }
  return fmt::format("{}", fmt::join(times, ""));
}

}  // namespace

std::string last_lines(const std::filesystem::path& run, std::size_t lines) {
  std::vector<std::filesystem::path> files;
  std::error_code none;  // without log.rank_files there is no such folder
  for (const auto& entry : std::filesystem::directory_iterator(run / "ranks", none))
    files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  files.insert(files.begin(), run / "console.log");
  std::string text;
  for (const std::filesystem::path& path : files) {
    const FileEnd end = read_end(path, lines);
    if (!end.with_hosts.empty()) text = end.with_hosts + "\n" + text;
    text += fmt::format("\n== {}, {}\n", path.lexically_relative(run).string(),
                        counted(end.count, "line"));
    for (const std::string& line : end.last) text += line + "\n";
  }
  return last_times(run / "metrics.jsonl", lines) + text;
}

}  // namespace trireme::report
