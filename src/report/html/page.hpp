// Runs as one HTML page that needs nothing else: no network, no other file.
#pragma once

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

namespace trireme::report {

/// The page of `paths`: run folders, metrics.jsonl files, logs of Megatron-LM's; a folder whose
/// subfolders are run folders, as of a sweep, stands for those. Curves have every training line:
/// the page draws lowest and highest values of what is visible. Text of runs and decks is data that
/// the page shows as text. `progress` gets a progress meter, null nothing. Throws IoError and
/// DataError for what cannot be read.
std::string html_page(const std::vector<std::filesystem::path>& paths,
                      std::FILE* progress = nullptr);

}  // namespace trireme::report
