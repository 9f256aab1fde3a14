#include "report/follow/follower.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/files.hpp"
#include "core/system/process.hpp"
#include "core/text.hpp"
#include "deck/load.hpp"

namespace trireme::report {
namespace {

namespace fs = std::filesystem;

/// Whether a run holds the folder's lock. That it is free is only certain on the run's first host.
Lock probe_lock(const fs::path& folder, const StartEvent& start) {
  const int file = ::open((folder / ".lock").c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return Lock::unknown;
  const bool taken = ::flock(file, LOCK_SH | LOCK_NB) == 0;
  const bool held = !taken && errno == EWOULDBLOCK;
  ::close(file);
  if (held) return Lock::held;
  const bool here = !start.hosts.empty() && start.hosts.front() == host_name();
  return taken && here ? Lock::free : Lock::unknown;
}

/// Whether version `a` ("0.2.0") comes after `b`.
bool is_newer(const std::string& a, const std::string& b) {
  const auto parts = [](const std::string& version) {
    std::vector<int> numbers(3);
    std::sscanf(version.c_str(), "%d.%d.%d", &numbers[0], &numbers[1], &numbers[2]);
    return numbers;
  };
  return parts(a) > parts(b);
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

/// The value of `key` in " A=1 B=some words C=2": up to the next word that is a key.
std::string value_of(const std::string& line, const std::string& key) {
  const std::string begin = fmt::format(" {}=", key);
  const std::size_t found = line.find(begin);
  if (found == std::string::npos) return "";
  const std::string_view rest = std::string_view(line).substr(found + begin.size());
  for (std::size_t space = rest.find(' '); space != std::string_view::npos;
       space = rest.find(' ', space + 1)) {
    const std::string_view next = rest.substr(space + 1);
    const std::size_t word =
        std::find_if_not(next.begin(), next.end(),
                         [](unsigned char c) { return std::isalnum(c) || c == '/' || c == ':'; }) -
        next.begin();
    if (word > 0 && word < next.size() && next[word] == '=')
      return std::string(rest.substr(0, space));
  }
  return std::string(rest);
}

constexpr off_t kHead = 256;

/// Closes a descriptor at the end of a scope.
struct Closer {
  int file;
  ~Closer() { ::close(file); }
};

}  // namespace

// ---------------------------------------------------------------------------- lines of a file

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

// ---------------------------------------------------------------------------- Slurm

bool is_job_id(std::string_view text) {
  const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  if (digits == 0) return false;
  if (digits == text.size()) return true;
  const std::string_view part = text.substr(digits + 1);
  return (text[digits] == '_' || text[digits] == '+') && !part.empty() &&
         part.find_first_not_of("0123456789") == std::string_view::npos;
}

SlurmJob parse_job(const std::string& id, const std::string& output) {
  const std::string line = fmt::format(" {}", output.substr(0, output.find('\n')));
  const std::string state = value_of(line, "JobState");
  if (state.empty())
    throw DataError("Slurm does not know job {}:{}; name the run folder instead", id,
                    line == " " ? " no answer" : line);
  const bool several = output.find("\nJobId=") != std::string::npos;
  if (several && !value_of(line, "ArrayJobId").empty())
    throw DataError("job {} is an array: name one of its jobs, such as {}_0", id, id);
  return {.state = {id, state, value_of(line, "Reason")},
          .directory = value_of(line, "WorkDir"),
          .out = value_of(line, "StdOut"),
          .err = value_of(line, "StdErr")};
}

SlurmJob find_job(const std::string& id) {
  TRIREME_CHECK(is_job_id(id), "'{}' is no job", id);  // a shell will read it
  return parse_job(id, ask_shell("scontrol show job -o " + id + " 2>&1").output);
}

std::filesystem::path run_folder_of(const SlurmJob& job) {
  const std::string key = "run folder ";
  std::string text;
  try {
    text = read_file(job.out);
  } catch (const IoError& error) {
    throw DataError("job {} is {}, and its output names no run folder: {}", job.state.id,
                    job.state.state, error.what());
  }
  for (std::size_t at = text.rfind(key); at != std::string::npos; at = text.rfind(key, at - 1)) {
    // srun --label has the task's number before it, mpirun --tag-output the rank's.
    const std::size_t line = text.rfind('\n', at) + 1;
    const std::string_view label(text.data() + line, at - line);
    if (!label.empty() && !label.ends_with(": ") && !label.ends_with(">:")) continue;
    const std::size_t begin = at + key.size();
    return job.directory / text.substr(begin, text.find_first_of("\r\n", begin) - begin);
  }
  throw DataError("job {} is {}, and its output '{}' names no run folder (yet)", job.state.id,
                  job.state.state, job.out.string());
}

// ---------------------------------------------------------------------------- the run

FollowTarget find_target(const std::string& words) {
  FollowTarget target;
  std::error_code unreadable;  // reading the folder will say why
  if (fs::is_directory(words, unreadable)) {
    target.folder = words;
  } else if (fs::exists(words, unreadable)) {
    if (fs::path(words).filename() != "metrics.jsonl")
      throw UsageError("'{}' is no run folder: name the folder of a run, or a job of Slurm", words);
    target.folder = fs::path(words).has_parent_path() ? fs::path(words).parent_path() : ".";
  } else if (is_job_id(words)) {
    target.job = words;
    target.folder = run_folder_of(find_job(words));
  } else {
    throw IoError("there is no run folder '{}'", words);
  }
  return target;
}

Follower::Follower(FollowTarget target)
    : target_(std::move(target)), metrics_(target_.folder / "metrics.jsonl") {
  const auto there = [&](const char* name) { return fs::exists(target_.folder / name); };
  if (!there("metrics.jsonl") && !there("deck.yaml"))
    throw IoError("'{}' is no run folder, or its run has not begun: it has no metrics.jsonl",
                  target_.folder.string());
}

void Follower::read_metrics() {
  const LineFile::News news = metrics_.read();
  if (news.anew) run_ = {};  // a restart cuts the file back to its checkpoint
  for (const std::string& line : news.lines) run_.take(line);
}

void Follower::watch_output(const fs::path& path) {
  if (!path.empty() && path != "/dev/null")
    output_files_.try_emplace(path.filename().string(), path);
}

void Follower::read_output() {
  std::error_code none;  // without log.rank_files there is no such folder
  for (const fs::directory_entry& entry : fs::directory_iterator(target_.folder / "ranks", none))
    if (entry.path().extension() == ".err" || entry.path().extension() == ".out")
      watch_output(entry.path());
  // Without log.rank_files, and without a job, there is what rank 0 printed.
  if (output_files_.empty()) watch_output(target_.folder / "console.log");
  for (auto& [name, file] : output_files_) {
    const LineFile::News news = file.read();
    if (news.anew) output_.forget(name);
    for (const std::string& line : news.lines) output_.take(name, line);
  }
}

Verdict Follower::compare_decks() const {
  AskedDeck asked{fs::path(run_.start.directory) / run_.start.deck, run_.start.overrides};
  std::string name = run_.start.deck;
  if (target_.asked) {
    asked = *target_.asked;
    name = asked.path.string();
  } else if (name.empty()) {
    return {Judgement::unknown, "the start line does not name a deck; add --deck FILE"};
  }
  for (const std::string& word : asked.overrides) name += " " + word;
  try {
    const deck::Deck effective = deck::load(target_.folder / "deck.yaml", {}, {.need_data = false});
    deck::Deck wanted = deck::load(asked.path, asked.overrides,
                                   {.need_data = false, .automatic = effective.run.device});
    return is_deck_as_asked(effective, std::move(wanted), name);
  } catch (const Error& error) {
    return {target_.asked ? Judgement::bad : Judgement::unknown,
            "cannot compare: " + first_line(error.what())};
  }
}

std::vector<std::string> Follower::notes() const {
  constexpr std::size_t kMaxStragglers = 8;
  std::vector<std::string> notes = stragglers(run_);
  const std::size_t more = notes.size() - std::min(notes.size(), kMaxStragglers);
  notes.resize(notes.size() - more);
  for (std::string& note : notes) note = "straggler: " + note;
  if (more > 0) notes.push_back(fmt::format("and {} more stragglers", more));
  if (run_.warning)
    notes.push_back(
        fmt::format("warning of iteration {}: {}", run_.warning->iteration, run_.warning->message));
  if (run_.unreadable > 0)
    notes.push_back(
        fmt::format("metrics.jsonl has {} that cannot be read", counted(run_.unreadable, "line")));
  if (is_newer(run_.start.version, target_.version))
    notes.push_back(fmt::format("the run is of version {}, newer than this program, {}",
                                run_.start.version, target_.version));
  for (const auto& [kind, count] : run_.unknown_kinds)
    notes.push_back(
        fmt::format("metrics.jsonl has {} of a kind that this program does not know: {}",
                    counted(count, "line"), kind));
  return notes;
}

std::optional<JobState> Follower::look_up_job() {
  try {
    const SlurmJob job = find_job(target_.job);
    watch_output(job.out);
    watch_output(job.err);
    return job.state;
  } catch (const Error&) {
    return std::nullopt;  // Slurm forgets a job minutes after its end
  }
}

Page Follower::look() {
  read_metrics();
  ProcessState process{.lock = probe_lock(target_.folder, run_.start)};
  if (!target_.job.empty()) process.job = look_up_job();
  read_metrics();  // again: lines that the run wrote before it released the lock
  process.now = unix_time();
  read_output();
  return {.folder = target_.folder.string(),
          .run = run_,
          .now = process.now,
          .ended = has_ended(run_, process),
          .verdicts = {is_running(run_, process), are_gpus_busy(run_), has_no_error(output_, run_),
                       compare_decks()},
          .notes = notes()};
}

}  // namespace trireme::report
