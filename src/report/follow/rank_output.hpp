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

/// The complete lines of a file that grows, is truncated or is replaced while it is read.
class LineFile {
 public:
  explicit LineFile(std::filesystem::path path) : path_(std::move(path)) {}

  struct News {
    /// The file was replaced or truncated: lines returned before are obsolete.
    bool anew = false;
    std::vector<std::string> lines;  ///< without their newlines and returns
  };
  /// The lines since the last call; none when the file does not exist. Throws IoError when it
  /// cannot be read.
  News read();

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  off_t offset_ = 0;   ///< read so far
  std::string head_;   ///< the first bytes, by which a replaced file is recognised
  std::string begun_;  ///< an incomplete line
};

/// The beginning, after the rank, of the first line that a start of the program writes to a file of
/// <run>/ranks: earlier lines are from an earlier start.
inline constexpr std::string_view kOutputMarker = "--- output since ";

/// Whether a line of output is an error message: it has one of the words that MPI, NCCL, CUDA,
/// Slurm, the C++ runtime and this program use, and is no warning.
bool tells_of_error(std::string_view line);

/// The last `lines` lines of a run's console.log and of each file of its `ranks`, under the file's
/// name and number of lines; before them the line of console.log with hosts and GPUs, and the times
/// of the last `lines` training lines. Lines end in newlines. Throws IoError.
std::string last_lines(const std::filesystem::path& run, std::size_t lines);

/// Collects the errors in the output of ranks.
class RankOutput {
 public:
  /// Takes the next line of the file named `file`, which begins with its rank, "[rank 3] ". After
  /// the rank's marker its earlier lines in this file no longer count.
  void take(const std::string& file, std::string_view line);
  /// The file was replaced or truncated.
  void forget(const std::string& file) { files_.erase(file); }

  /// Whether no line counts.
  bool empty() const { return files_.empty(); }
  /// Error lines and warning lines of all ranks.
  std::int64_t errors() const;
  std::int64_t warnings() const;
  /// Files that were read.
  std::int64_t files() const { return static_cast<std::int64_t>(files_.size()); }
  /// The first error line, after its file; "" when there is none.
  std::string first_error() const;

 private:
  struct Said {
    std::int64_t errors = 0, warnings = 0;
    std::string first_error;
  };
  std::map<std::string, std::map<std::string, Said>> files_;  ///< by file, then by rank
};

}  // namespace trireme::report
