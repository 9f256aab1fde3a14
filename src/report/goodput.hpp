// Where the time of a run went, over all its starts: useful iterations, iterations that a failure
// lost, start-up, checkpoints, the time between starts.
//
// metrics.jsonl is cut back to the checkpoint at each restart, so that the run's next start records
// what it cuts in `starts.jsonl`, a line for each start that has ended.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::report {

/// One start of a run. Times are in seconds, points in time since 1970.
struct RunStart {
  double began = 0.0;                ///< the start event
  double ended = 0.0;                ///< the last event
  std::int64_t first_iteration = 0;  ///< the iteration that it resumed from
  std::int64_t reached = 0;          ///< the last iteration in a training line
  std::int64_t lost_iterations = 0;  ///< that the next start repeated
  double start_up = 0.0;             ///< until the first iteration
  double useful = 0.0, lost = 0.0;   ///< of iterations
  double checkpoints = 0.0;          ///< for which training waited
  std::string cause;                 ///< the reason of the stop event, or "killed or lost a rank"
  std::optional<std::int64_t> exit_code;  ///< of the stop event

  bool operator==(const RunStart&) const = default;
};

/// The last start in the lines of a metrics.jsonl. The next one resumes from iteration `resumed`;
/// without it from the last checkpoint, or from where the start stopped with one. Empty when there
/// is none. Lines that are no JSON objects are passed over.
std::optional<RunStart> last_start(std::string_view metrics, std::optional<std::int64_t> resumed);

/// Appends the last start of `folder`/metrics.jsonl to `folder`/starts.jsonl, if there is one. For
/// a start that resumes from iteration `resumed`, before it cuts metrics.jsonl. Throws IoError.
void record_last_start(const std::filesystem::path& folder, std::int64_t resumed);

/// All starts of the run in `folder`, oldest first. Throws IoError, DataError.
std::vector<RunStart> read_starts(const std::filesystem::path& folder);

/// "goodput 93.1 % of 1.2 h: useful ..., lost ...": one line.
std::string goodput_line(const std::vector<RunStart>& starts);
/// That line, and a table of the causes.
std::string goodput_text(const std::vector<RunStart>& starts);
/// As one JSON object.
std::string goodput_json(const std::vector<RunStart>& starts);

}  // namespace trireme::report
