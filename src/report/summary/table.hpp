// Summaries as a table, for people and for programs.
#pragma once

#include <string>
#include <vector>

#include "report/summary/run_summary.hpp"

namespace trireme::report {

enum class TableFormat { text, csv, markdown, json };

/// One row for each run under a line of names. Text and Markdown round, show memory in GiB and MFU
/// in percent, and "-" for what is not known; CSV (RFC 4180) and JSON (an array of objects) have
/// all digits, bytes and fractions, and nothing or null for it. Ends in a newline.
std::string to_table(const std::vector<RunSummary>& runs, TableFormat format);

}  // namespace trireme::report
