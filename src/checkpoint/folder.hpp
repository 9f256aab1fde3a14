// The folder of a run's checkpoints: which there are, which one to restart from, which to delete.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace trireme::checkpoint {

/// `folder`/step-00001000.h5 for iteration 1000.
std::filesystem::path step_path(const std::filesystem::path& folder, std::int64_t iteration);

/// A published checkpoint file. Its iteration is taken from its name.
struct Step {
  std::int64_t iteration = 0;
  std::filesystem::path path;
};

/// The step files of `folder`, oldest iteration first; files still being written (.part) are not
/// among them. Empty when the folder does not exist. Throws IoError.
std::vector<Step> list_steps(const std::filesystem::path& folder);

/// Where to restart from.
struct Latest {
  std::filesystem::path path;
  std::string note;  ///< empty, or a sentence that says why it is not what `latest` names
};

/// The checkpoint that `folder`/latest names. When there is no such file, or what it names is
/// missing or damaged, the newest step file that can be opened and is not newer than that, with a
/// note: newer ones are of a course that the run has left for an earlier checkpoint. Empty when the
/// folder has no checkpoint at all. Throws DataError when it has some and none can be opened.
std::optional<Latest> find_latest(const std::filesystem::path& folder);

/// The checkpoint that a person means by `path`: the file itself, or find_latest() of a folder of
/// checkpoints or of a run's folder. Throws IoError when there is none, and as find_latest().
Latest locate(const std::filesystem::path& path);

/// Deletes the step files that are neither among the `keep` newest up to the one that `latest`
/// names, nor newer than that, nor of an iteration that is a milestone; without `keep` deletes
/// nothing. Called by one rank after a save that succeeded. Returns the deleted files. Throws
/// IoError that names the first file that cannot be deleted, when all others are.
std::vector<std::filesystem::path> retain(
    const std::filesystem::path& folder, std::optional<std::int64_t> keep,
    const std::function<bool(std::int64_t)>& is_milestone = [](std::int64_t) { return false; });

/// Names `path` in the file `latest` beside it, atomically. Throws IoError.
void publish(const std::filesystem::path& path);

/// Leaves the course behind the checkpoint at `path`, of `iteration`, for good: names it in
/// `latest`, and then adds ".left" to the names of the folder's newer step files, so that they are
/// no step files any more. A start from the same checkpoint does what a kill has cut off. Returns
/// how many were renamed. Throws IoError.
int leave_newer(const std::filesystem::path& path, std::int64_t iteration);

/// Deletes the unfinished files (.part, and those that MPI-IO made with them) of `folder`. Throws
/// IoError.
void remove_unfinished(const std::filesystem::path& folder);

}  // namespace trireme::checkpoint
