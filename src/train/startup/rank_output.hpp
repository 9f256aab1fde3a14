// The files under <run>/ranks: what the ranks of each node print, and what hangs (write_stacks()).
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace trireme::train {

/// <run>/ranks/<host><suffix> for this host.
std::filesystem::path rank_file(const std::filesystem::path& run_folder, const std::string& suffix);

/// Makes <run>/ranks. Throws IoError.
void make_rank_folder(const std::filesystem::path& run_folder);

/// Removes the files that an earlier run left there. Throws IoError.
void remove_rank_files(const std::filesystem::path& run_folder);

/// From now until the process ends its standard output and error go to <run>/ranks/<host>.out and
/// .err, each line with "[rank N] " before it; the first is report::kOutputMarker and the time.
/// What went to standard error still does; standard output continues for rank 0 alone. A separate
/// process passes the lines on: it loses none when this one is killed. Throws IoError.
void keep_rank_output(const std::filesystem::path& run_folder, int rank);

/// That process's work, when the command line of this one says that it is it: then returns the exit
/// code. To be asked before anything else.
std::optional<int> relay_if_asked(int argc, char** argv);

}  // namespace trireme::train
