// A sweep for people and spreadsheets.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "sweep/check.hpp"
#include "sweep/state.hpp"

namespace trireme::sweep {

/// The status of every run, in order.
std::vector<Status> all_statuses(const PlannedSweep& sweep, const Queue& queue = {});

/// "6 runs: 3 finished, 1 failed, 2 waiting".
std::string count_line(const std::vector<Status>& statuses);

/// A line for each run: name, state, iterations, loss; then count_line().
std::string status_text(const PlannedSweep& sweep, const std::vector<Status>& statuses);

/// What is planned: a line for each run with its ranks, memory and state, and its command.
std::string plan_text(const PlannedSweep& sweep, const std::vector<Status>& statuses,
                      const std::vector<std::string>& commands);

enum class TableFormat { text, csv, markdown };

/// Columns that another source adds to a table, by the name of a run.
struct Beside {
  std::vector<std::string> columns;
  std::vector<std::pair<std::string, std::vector<std::string>>> rows;  ///< name, then its cells
};

/// Reads a CSV file whose first column is the name of a run and whose first line has the names of
/// the columns; lines that begin with '#' are left out. `source` is what errors name. Throws
/// DataError with the line when a row has another number of cells or a name no run has.
Beside read_beside(const std::string& text, const std::string& source, const PlannedSweep& sweep);

/// A row for each run: name, state, the keys that the sweep sets, losses, median milliseconds per
/// iteration, throughput, MFU, memory of the fullest rank as used and as planned; then the columns
/// of `beside`.
std::string table(const PlannedSweep& sweep, const std::vector<Status>& statuses,
                  TableFormat format, const Beside& beside = {});

}  // namespace trireme::sweep
