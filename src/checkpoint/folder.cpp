#include "checkpoint/file.hpp"

#include <algorithm>
#include <charconv>
#include <limits>
#include <string_view>
#include <system_error>

#include "core/error.hpp"
#include "core/files.hpp"

namespace trireme::checkpoint {
namespace {

/// The bound where `latest` names no step file. Step files newer than the one that `latest` names
/// are superseded: the run resumed from an older checkpoint, and was killed before
/// supersede_newer() had renamed them.
constexpr std::int64_t kUnbounded = std::numeric_limits<std::int64_t>::max();

/// The entries of `folder`; none when it does not exist.
std::vector<std::filesystem::path> list_files(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  std::error_code error;
  if (!std::filesystem::exists(folder, error)) return files;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error))
    files.push_back(entry->path());
  if (error) throw IoError("cannot list '{}': {}", folder.string(), error.message());
  return files;
}

void remove_file(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::remove(path, error);
  if (error) throw IoError("cannot delete '{}': {}", path.string(), error.message());
}

/// Adds ".superseded" to the name of the file at `path`, or ".superseded.2", ... where that is
/// taken.
void rename_superseded(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::path target = path.string() + ".superseded";
  for (int number = 2; std::filesystem::exists(target, error); ++number)
    target = fmt::format("{}.superseded.{}", path.string(), number);
  std::filesystem::rename(path, target, error);
  if (error)
    throw IoError("cannot rename '{}' to '{}': {}", path.string(), target.string(),
                  error.message());
}

/// The file name in `folder`/latest; empty when there is no such file.
std::string latest_name(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "latest";
  std::error_code error;
  const bool exists = std::filesystem::exists(file, error);
  if (error) throw IoError("cannot look for '{}': {}", file.string(), error.message());
  if (!exists) return "";
  constexpr std::size_t kMaxNameBytes = 4096;
  const std::string text = read_regular_file(file, kMaxNameBytes);
  return text.substr(0, text.find_last_not_of(" \r\n") + 1);
}

/// Whether `text` can be the name of a file that a run has written.
bool is_plain_name(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c > ' ' && c <= '~' && c != '/'; });
}

/// Why the checkpoint at `path` cannot be opened; empty when it can.
std::string problem_with(const std::filesystem::path& path) {
  try {
    const Reader reader(path);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

/// The number in "step-<number>.h5"; empty for any other name.
std::optional<std::int64_t> iteration_of(const std::string& name) {
  const std::string prefix = "step-";
  const std::string suffix = ".h5";
  if (name.size() <= prefix.size() + suffix.size() || !name.starts_with(prefix) ||
      !name.ends_with(suffix))
    return std::nullopt;
  const char* const end = name.data() + name.size() - suffix.size();
  std::int64_t iteration = 0;
  const auto [stop, error] = std::from_chars(name.data() + prefix.size(), end, iteration);
  if (error != std::errc() || stop != end || iteration < 0) return std::nullopt;
  return iteration;
}

}  // namespace

std::filesystem::path step_path(const std::filesystem::path& folder, std::int64_t iteration) {
  return folder / fmt::format("step-{:08}.h5", iteration);
}

std::vector<Step> list_steps(const std::filesystem::path& folder) {
  std::vector<Step> steps;
  for (const std::filesystem::path& file : list_files(folder))
    if (const auto iteration = iteration_of(file.filename().string()))
      steps.push_back({*iteration, file});
  std::sort(steps.begin(), steps.end(),
            [](const Step& a, const Step& b) { return a.iteration < b.iteration; });
  return steps;
}

std::optional<Latest> find_latest(const std::filesystem::path& folder) {
  const std::string named = latest_name(folder);
  std::string problem = fmt::format("'{}' has no file 'latest'", folder.string());
  if (!is_plain_name(named)) {
    problem = fmt::format("'{}' does not hold the name of a file", (folder / "latest").string());
  } else if (!named.empty()) {
    problem = problem_with(folder / named);
    if (problem.empty()) return Latest{folder / named, ""};
  }
  const std::vector<Step> steps = list_steps(folder);
  const std::int64_t last = iteration_of(named).value_or(kUnbounded);
  std::string newest_problem;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    if (step->path.filename() == named || step->iteration > last) continue;
    if (const std::string rejected = problem_with(step->path); !rejected.empty()) {
      if (newest_problem.empty()) newest_problem = rejected;
      continue;
    }
    return Latest{step->path, fmt::format("{}: using '{}', the newest complete checkpoint", problem,
                                          step->path.filename().string())};
  }
  if (named.empty() && steps.empty()) return std::nullopt;
  const bool none_named = named.empty() && !newest_problem.empty();
  throw DataError("no checkpoint in '{}' can be opened: {}", folder.string(),
                  none_named ? newest_problem : problem);
}

bool is_foreign(const std::filesystem::path& path) {
  std::error_code ignored;
  const auto has = [&](const char* name) { return std::filesystem::exists(path / name, ignored); };
  if (!std::filesystem::is_directory(path, ignored)) return false;
  for (const char* name :
       {"latest_checkpointed_iteration.txt", "latest_universal", ".metadata", "zero"})
    if (has(name)) return true;
  for (const auto& entry : std::filesystem::directory_iterator(path, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("mp_rank_") || name.starts_with("global_step")) return true;
  }
  return false;
}

Latest locate(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored))
    throw IoError(
        "there is no checkpoint '{}': name a run folder, or a file such as "
        "RUN/checkpoints/step-00001000.h5",
        path.string());
  if (!std::filesystem::is_directory(path, ignored)) return {path, ""};
  const std::filesystem::path inside = path / "checkpoints";
  const bool of_run = std::filesystem::is_directory(inside, ignored);
  if (auto latest = find_latest(of_run ? inside : path)) return *latest;
  throw IoError("there is no checkpoint in '{}': expected files such as '{}'", path.string(),
                step_path(of_run ? inside : path, 1000).string());
}

std::vector<std::filesystem::path> retain(const std::filesystem::path& folder,
                                          std::optional<std::int64_t> keep,
                                          const std::function<bool(const Step&)>& is_milestone) {
  std::vector<std::filesystem::path> deleted;
  if (!keep) return deleted;
  const std::string named = latest_name(folder);
  const std::int64_t last = iteration_of(named).value_or(kUnbounded);
  std::vector<Step> steps = list_steps(folder);
  std::erase_if(steps, [&](const Step& step) { return step.iteration > last; });
  std::string problem;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const bool newest = static_cast<std::int64_t>(steps.size() - i) <= *keep;
    if (newest || is_milestone(steps[i]) || steps[i].path.filename() == named) continue;
    try {
      remove_file(steps[i].path);
      deleted.push_back(steps[i].path);
    } catch (const IoError& error) {
      if (problem.empty()) problem = error.what();
    }
  }
  if (!problem.empty()) throw IoError("{}", problem);
  return deleted;
}

void publish(const std::filesystem::path& path) {
  write_file_atomically(path.parent_path() / "latest", path.filename().string() + "\n");
}

int supersede_newer(const std::filesystem::path& path, std::int64_t iteration, bool deletes) {
  const std::filesystem::path folder = path.parent_path();
  if (latest_name(folder) != path.filename()) publish(path);
  std::vector<Step> newer = list_steps(folder);
  std::erase_if(newer, [&](const Step& step) {
    // A copy of an older checkpoint under a newer name is not newer than itself.
    std::error_code gone;
    return step.iteration <= iteration || std::filesystem::equivalent(step.path, path, gone);
  });
  for (const Step& step : newer) deletes ? remove_file(step.path) : rename_superseded(step.path);
  return static_cast<int>(newer.size());
}

void delete_steps(const std::filesystem::path& folder, std::int64_t first, std::int64_t last) {
  for (const Step& step : list_steps(folder))
    if (step.iteration >= first && step.iteration <= last) remove_file(step.path);
}

void remove_unfinished(const std::filesystem::path& folder) {
  // MPI-IO, through which earlier versions wrote, leaves files such as
  // step-00000020.h5.part.locktest.0.
  for (const std::filesystem::path& file : list_files(folder)) {
    const std::string name = file.filename().string() + ".";
    if ((name.starts_with("step-") || name.starts_with("latest")) &&
        name.find(".part.") != std::string::npos)
      remove_file(file);
  }
}

}  // namespace trireme::checkpoint
