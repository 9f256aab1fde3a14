// The output of ranks: reading files while they are written, and finding errors in them.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::report {

/// The lines of a file that grows, is cut back or is replaced, each when it is complete.
class LineFile {
 public:
  explicit LineFile(std::filesystem::path path) : path_(std::move(path)) {}

  struct News {
    /// The file is not the one, or not as long as, it was: what was read before holds no more.
    bool anew = false;
    std::vector<std::string> lines;  ///< without their newlines and returns
  };
  /// What came since the last call. A file that is not there gives nothing. Throws IoError when it
  /// cannot be read.
  News read();

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  off_t offset_ = 0;   ///< read so far
  std::string head_;   ///< the first bytes: a file that begins anew in its place has others
  std::string begun_;  ///< a line whose end has not come
};

/// How the first line begins, after the rank, that a start of the program writes to a file of
/// <run>/ranks: what stands before it is an earlier start's.
inline constexpr std::string_view kOutputMarker = "--- output since ";

/// Whether a line of output tells of an error: it has one of the words by which MPI, NCCL, CUDA,
/// Slurm, the C++ runtime and this program do so, and does not call itself a warning.
bool tells_of_error(std::string_view line);

/// Collects the errors in the output of ranks.
class RankOutput {
 public:
  /// Takes the next line of the file named `file`; its rank stands before it as "[rank 3] ". The
  /// rank's marker makes what it said before in this file be forgotten.
  void take(const std::string& file, std::string_view line);
  /// The file begins anew.
  void forget(const std::string& file) { files_.erase(file); }

  /// Whether nothing was taken, or all of it forgotten.
  bool empty() const { return files_.empty(); }
  /// Lines that tell of an error, and lines that call themselves a warning, of all ranks.
  std::int64_t errors() const;
  std::int64_t warnings() const;
  /// Files that were read.
  std::int64_t files() const { return static_cast<std::int64_t>(files_.size()); }
  /// The first line that tells of an error, its file before it; "" when there is none.
  std::string first_error() const;

 private:
  struct Said {
    std::int64_t errors = 0, warnings = 0;
    std::string first_error;
  };
  std::map<std::string, std::map<std::string, Said>> files_;  ///< by file, then by rank
};

}  // namespace trireme::report
