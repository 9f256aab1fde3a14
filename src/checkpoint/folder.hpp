// The folder of a run's checkpoints: listing, the one to resume from, retention.
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

/// The step files of `folder`, oldest iteration first, without unfinished (.part) and superseded
/// ones. Empty when the folder does not exist. Throws IoError.
std::vector<Step> list_steps(const std::filesystem::path& folder);

/// The checkpoint to resume from.
struct Latest {
  std::filesystem::path path;
  std::string note;  ///< empty, or why it is not the one that `latest` names
};

/// The checkpoint that `folder`/latest names. When that file is missing, or the checkpoint is
/// missing or damaged, the newest older step file that can be opened, with a note; newer ones are
/// superseded. Empty when the folder has no checkpoint at all. Throws DataError when it has some
/// and none can be opened.
std::optional<Latest> find_latest(const std::filesystem::path& folder);

/// Whether `path` is a folder of checkpoints of Megatron-LM or DeepSpeed, or one of them.
bool is_foreign(const std::filesystem::path& path);

/// The checkpoint that the user means by `path`: the file itself, or find_latest() of a folder of
/// checkpoints or of a run's folder. Throws IoError when there is none, and as find_latest().
Latest locate(const std::filesystem::path& path);

/// Deletes the step files that are neither among the `keep` newest up to the one that `latest`
/// names, nor newer than that, nor of an iteration that is a milestone; without `keep` deletes
/// nothing. Called by one rank after a save that succeeded. Returns the deleted files. Throws
/// IoError that names the first file that cannot be deleted, after deleting the others.
std::vector<std::filesystem::path> retain(
    const std::filesystem::path& folder, std::optional<std::int64_t> keep,
    const std::function<bool(std::int64_t)>& is_milestone = [](std::int64_t) { return false; });

/// Writes the name of `path` to the file `latest` in its folder, atomically. Throws IoError.
void publish(const std::filesystem::path& path);

/// Abandons the folder's checkpoints that are newer than the one at `path`, of `iteration`: names
/// the latter in `latest`, and then adds ".superseded" to the names of the newer step files, which
/// then are no step files any more. A kill in between is harmless: a start from the same checkpoint
/// completes it. With `deletes` the newer ones are deleted instead. Returns how many there were.
/// Throws IoError.
int supersede_newer(const std::filesystem::path& path, std::int64_t iteration,
                    bool deletes = false);

/// Deletes the folder's step files of the iterations `first` to `last`. Throws IoError.
void delete_steps(const std::filesystem::path& folder, std::int64_t first, std::int64_t last);

/// Deletes the unfinished files of `folder`: step-*.part, those that MPI-IO made with them, and
/// latest.part. Throws IoError.
void remove_unfinished(const std::filesystem::path& folder);

}  // namespace trireme::checkpoint
